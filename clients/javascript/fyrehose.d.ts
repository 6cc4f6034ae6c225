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

/** The server has another journal: the last number of the stream there, which is read from its start, and the epoch. */
export interface Restarted {
  restarted: number;
  epoch: string;
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
  from?: number | string;
  limit?: number;
}

export interface ConsumeOptions extends ReadOptions {
  /** How long the consumer has the subscription for itself between two requests, in seconds; 30 by default. */
  lease?: number;
  /** How long to wait for a record, in seconds. */
  wait?: number;
  /** Displace another consumer. */
  takeover?: boolean;
}

export interface FollowOptions extends RequestOptions {
  from?: number | string;
  /** The epoch of `from`, as an answer or `restarted` has it, if the program has kept it. */
  epoch?: string;
  /** Whether all tabs of a site that follow the stream have one connection together; in browsers with Web Locks. */
  shared?: boolean;
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
  /** The records because of which the server refused to settle and publish. */
  readonly refused?: RefusedRecord[];
}

export class Fyrehose {
  constructor(url: string | URL, options?: FyrehoseOptions);
  publish(stream: string, message: unknown, options?: PublishOptions): Promise<Published>;
  publishMany(stream: string, messages: Iterable<unknown>, options?: PublishOptions): Promise<Published>;
  read(stream: string, options?: ReadOptions): Promise<FyrehoseRecord[]>;
  streams(match?: string, options?: RequestOptions): Promise<StreamInfo[]>;
  follow(stream: string, options?: FollowOptions): AsyncGenerator<FyrehoseRecord | Gap | Restarted>;
  subscription(name: string, stream: string, options?: { consumer?: string }): Subscription;
  shared(name: string): SharedSubscription;
}

export class Subscription {
  readonly name: string;
  readonly stream: string;
  /** The name of the consumer; a random one by default. */
  readonly consumer: string;
  read(options?: ConsumeOptions): Promise<FyrehoseRecord[]>;
  acknowledge(seq: number, options?: RequestOptions): Promise<SubscriptionInfo>;
  rewind(seq: number | "start" | "latest", options?: RequestOptions): Promise<SubscriptionInfo>;
  show(options?: RequestOptions): Promise<SubscriptionInfo>;
  delete(options?: RequestOptions): Promise<void>;
  consume(options?: ConsumeOptions): AsyncGenerator<FyrehoseRecord>;
}

/** What PUT takes, docs/protocols/http.md, "Shared subscriptions". */
export interface SharedOptions {
  stream?: string;
  match?: string;
  lease?: number;
  limit?: number;
  dead?: string | null;
  window?: number;
  most?: number;
  key?: string | null;
  from?: number;
}

export interface SharedInfo {
  name: string;
  kind: "shared";
  /** The stream, or the pattern. */
  stream: string;
  pattern: boolean;
  lease: number;
  limit: number;
  paused: boolean;
  lag: number;
  in_flight: number;
  waiting: number;
  delayed: number;
  /** Until when records that may have been leased before a start wait, in microseconds since 1970 UTC; null: none does. */
  held_until: number | null;
  window_full: boolean;
  oldest_unsettled_seconds: number | null;
  settled_total: number;
  dead_total: number;
  expired_total: number;
  redelivered_total: number;
  late_refused_total: number;
  requests_waiting: number;
  floor: Record<string, number>;
  leases: { stream: string; seq: number; consumer: string; ends_in: number; failures: number }[];
  dead_letters: { stream: string; seq: number; failures: number; time: number; why: string }[];
}

export interface LeasedRecord extends FyrehoseRecord {
  token: string;
  /** How often the record has failed. */
  failures: number;
}

export interface LeaseOptions extends RequestOptions {
  /** A name for lists and for limits. */
  consumer: string;
  most?: number;
  /** How long to wait for the first record, in seconds. */
  wait?: number;
  /** A number that makes a repetition get the same leases; by default one for each call. */
  request?: number;
}

/** A record to settle: its number (or the first and the last of a range), and its token; of a pattern its stream first. */
export type Item<Options = never> =
  | [seq: number | [number, number], token: string, options?: Options]
  | [stream: string, seq: number | [number, number], token: string, options?: Options];

export interface Settling {
  done?: Item[];
  failed?: Item<{ delay?: number }>[];
  untried?: Item<{ delay?: number }>[];
  reject?: Item<{ why?: string }>[];
  extend?: Item[];
  publish?: Result[];
}

/** A message to publish in the same commit. */
export interface Result {
  stream: string;
  payload?: string;
  payload_base64?: string;
  content_type?: string;
}

export interface RefusedRecord {
  stream?: string;
  seq: number | [number, number];
  why: "final" | "being-settled" | "lease-lost" | "rewound" | "not-leading";
}

export interface Settled {
  settled: (number | [number, number] | { stream: string; seq: number | [number, number] })[];
  refused: RefusedRecord[];
  extended: { stream?: string; seq: number | [number, number]; token: string }[];
}

export interface WorkOptions extends RequestOptions {
  /** A name for lists and for limits; a random one by default. */
  consumer?: string;
  /** How many records are handled at the same time; 1 by default. */
  most?: number;
  wait?: number;
  /** How many lease times a record is extended at most; 10 by default. */
  longest?: number;
}

/** Handle a record. The signal fires when the lease is lost: another worker may have the record. */
export type Handler = (record: LeasedRecord, signal: AbortSignal) => Promise<Result[] | void> | Result[] | void;

/** A worker throws it to make a record a dead letter at once. */
export class Reject extends Error {}

export class SharedSubscription {
  readonly name: string;
  create(options: SharedOptions, request?: RequestOptions): Promise<SharedInfo>;
  lease(options: LeaseOptions): Promise<{ lease: number; waited: number; records: LeasedRecord[] }>;
  settle(lists: Settling, options?: RequestOptions): Promise<Settled>;
  pause(paused?: boolean, options?: RequestOptions): Promise<SharedInfo>;
  redrive(options?: RequestOptions): Promise<number>;
  rewind(seq: number | "start" | "latest", options?: RequestOptions): Promise<SharedInfo>;
  show(options?: RequestOptions): Promise<SharedInfo>;
  delete(options?: RequestOptions): Promise<void>;
  work(handle: Handler, options?: WorkOptions): Promise<void>;
}

/** Return the payload of a record as bytes. */
export function bytesOf(record: FyrehoseRecord): Uint8Array;
