import type { Duplex } from "node:stream";

/** The server did not store a message, or nobody knows whether it did. */
export class RelinkError extends Error {
  /** `unknown`: the link was lost, so the message may be stored or not; `not-stored`: it is not. */
  readonly outcome: "unknown" | "not-stored";
}

export interface RelinkOptions {
  /** Open a connection, with TLS for example: `(where) => tls.connect(where)`. */
  connect?: (where: { host: string; port: number; noDelay: true }) => Duplex;
  /** Ends the publisher or the subscriber, as `destroy()` does. */
  signal?: AbortSignal;
}

export interface PublisherOptions extends RelinkOptions {
  /** Whether the messages of one publish() are stored together or not at all. */
  transactional?: boolean;
}

/** Publishes to one stream by a link that survives broken connections and restarts of the server. */
export class RelinkPublisher {
  /** Connect to HOST:PORT in the background. */
  constructor(address: string, stream: string, options?: PublisherOptions);
  /** Return a promise of room for another message. */
  ready(): Promise<void>;
  /** Publish messages; the promise is fulfilled when all of them are on the server's disk. */
  publish(...messages: (string | Uint8Array)[]): Promise<void>;
  /** Wait until everything is stored, and end the link at both sides. */
  close(): Promise<void>;
  /** End at once; messages that are not acknowledged fail. */
  destroy(error?: Error): void;
}

export interface SubscriberOptions extends RelinkOptions {
  /** Begin behind this number; 0: with the oldest record. By default with the next one. */
  after?: number;
  /** The named subscription whose position the server keeps; `after` says where a new one begins. */
  subscription?: string;
  /** Displace another consumer of the subscription. */
  takeover?: boolean;
  /** The epoch of `after`, as `restarted` has it, if the program has kept it. */
  epoch?: string;
}

export interface RelinkRecord {
  stream: string;
  seq: number;
  gap?: undefined;
  restarted?: undefined;
  /** The message, if it has one part. */
  payload: Buffer | undefined;
  /** All parts of the message. */
  parts: Buffer[];
}

export interface RelinkGap {
  /** Numbers that are missing for good: the first and the last. */
  gap: [number, number];
  restarted?: undefined;
  seq?: undefined;
}

export interface RelinkRestarted {
  /** The server has another journal: the last number of the stream there, which is read from its start. */
  restarted: number;
  epoch: string;
  gap?: undefined;
  seq?: undefined;
}

/**
 * Yields the records of one stream, each once and in order. A record is acknowledged when the loop asks for the next
 * one; leaving the loop ends the link.
 */
export class RelinkSubscriber implements AsyncIterable<RelinkRecord | RelinkGap | RelinkRestarted> {
  /** Connect to HOST:PORT in the background. */
  constructor(address: string, stream: string, options?: SubscriberOptions);
  [Symbol.asyncIterator](): AsyncGenerator<RelinkRecord | RelinkGap | RelinkRestarted, void, void>;
  /** End the link; within the loop, when it asks for the next record, so that the one it has is acknowledged. */
  close(): Promise<void>;
  /** End at once; the loop fails with `error`, if there is one. */
  destroy(error?: Error): void;
}
