/** A record, as the server describes it in docs/protocols/http.md, "Reading". */
export interface FyrehoseRecord {
  stream: string;
  seq: number;
  /** Microseconds since 1970 UTC. */
  time: number;
  source: string;
  producer: string;
  topic?: string;
  content_type?: string;
  producer_seq?: number;
  event_id?: number;
  event_time?: number;
  /** The message, if it is UTF-8. */
  payload?: string;
  /** The message, if it is not. */
  payload_base64?: string;
}

/** Numbers that are missing for good: the first and the last. */
export interface Gap {
  gap: [number, number];
}

export interface Published {
  stream: string;
  count: number;
  first?: number;
  last?: number;
  ranges?: [number, number][];
}

export interface StreamInfo {
  name: string;
  first: number;
  last: number;
  bytes: number;
  oldest_age: number | null;
  newest_age: number | null;
}

export interface SubscriptionInfo {
  name: string;
  kind: string;
  stream: string;
  position?: number;
  lag: number;
  lag_seconds: number | null;
  generation: number;
  consumer: boolean;
  active: number;
}

export interface RequestOptions {
  signal?: AbortSignal;
}

export interface PublishOptions extends RequestOptions {
  /** The Idempotency-Key; by default a random one for each call. */
  key?: string;
  contentType?: string;
}

export interface ReadOptions extends RequestOptions {
  from?: number;
  limit?: number;
}

export interface ConsumeOptions extends ReadOptions {
  /** How long to wait for a record, in seconds. */
  wait?: number;
  /** Displace another consumer. */
  takeover?: boolean;
}

export interface FyrehoseOptions {
  /** A token of the access policy, or a function that returns one, for tokens that end. */
  token?: string | (() => string | Promise<string>);
  /** How often a request is sent again after a failure that may pass; 8 by default. */
  retries?: number;
  fetch?: typeof fetch;
}

export class FyrehoseError extends Error {
  /** The HTTP status; 0: there was no answer. */
  readonly status: number;
  /** Whether the same request may succeed later. */
  readonly retriable: boolean;
}

export class Fyrehose {
  constructor(url: string | URL, options?: FyrehoseOptions);
  publish(stream: string, message: unknown, options?: PublishOptions): Promise<Published>;
  publishMany(stream: string, messages: Iterable<unknown>, options?: PublishOptions): Promise<Published>;
  read(stream: string, options?: ReadOptions): Promise<FyrehoseRecord[]>;
  streams(match?: string, options?: RequestOptions): Promise<StreamInfo[]>;
  follow(stream: string, options?: { from?: number; signal?: AbortSignal }): AsyncGenerator<FyrehoseRecord | Gap>;
  subscription(name: string, stream: string): Subscription;
}

export class Subscription {
  readonly name: string;
  readonly stream: string;
  read(options?: ConsumeOptions): Promise<FyrehoseRecord[]>;
  acknowledge(seq: number, options?: RequestOptions): Promise<SubscriptionInfo>;
  rewind(seq: number | "start" | "latest", options?: RequestOptions): Promise<SubscriptionInfo>;
  show(options?: RequestOptions): Promise<SubscriptionInfo>;
  delete(options?: RequestOptions): Promise<void>;
  consume(options?: ConsumeOptions): AsyncGenerator<FyrehoseRecord>;
}

/** Return the payload of a record as bytes. */
export function bytesOf(record: FyrehoseRecord): Uint8Array;
