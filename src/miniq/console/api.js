// The public HTTP API: calls, the event stream with polling as fallback, and the key of this tab.
import { encode, parse, setClock } from "./dom.js";

const KEY = "miniq.key";
export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => (value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY)),
};

/** An error reply: code, detail and field of the problem. */
export class Refused extends Error {
  constructor(problem) {
    super(problem.detail ?? problem.title ?? "Request refused.");
    Object.assign(this, { code: problem.code, status: problem.status, field: problem.field });
  }
}
/** No reply at all. */
export class Unreachable extends Error {}

let onUnauthorized = () => {};
export const whenUnauthorized = (handler) => { onUnauthorized = handler; };

const authorization = () => (key.get() ? { authorization: `Bearer ${key.get()}` } : {});

async function request(method, path, body, options = {}) {
  let reply;
  try {
    reply = await fetch(path, {
      method,
      headers: { ...authorization(), ...(body === undefined ? {} : { "content-type": "application/json" }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      ...options,
      signal: options.signal ?? AbortSignal.timeout(PATIENCE),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Unreachable("Can't reach the broker.");
  }
  if (reply.ok) return reply;
  const text = await reply.text();
  let problem = { status: reply.status, detail: `The broker returned HTTP ${reply.status}.` };
  try { problem = JSON.parse(text); } catch { /* not problem+json */ }
  if (reply.status === 401) onUnauthorized(problem);
  throw new Refused(problem);
}

async function call(method, path, body, options, read = JSON.parse) {
  const reply = await request(method, path, body, options);
  const text = await reply.text();
  return text ? read(text) : null;
}

const query = (parameters) => {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};
const queue = (name) => `/v1/queues/${encode(name)}`;
const schedule = (name) => `/v1/schedules/${encode(name)}`;
/** A schedule of which only the body is kept as it was written; `every` is a number to calculate with. */
const readSchedule = (text) => ({ ...JSON.parse(text), body: parse(text).body });
const topic = (name) => `/v1/topics/${encode(name)}`;
const subscription = (name, label) => `${topic(name)}/subscriptions/${encode(label)}`;
const message = (name, id) => `${queue(name)}/messages/${encode(id)}`;

export const api = {
  whoami: (name) => call("GET", `/v1/whoami${query({ queue: name })}`),
  stats: (name, signal) => call("GET", `/v1/stats${query({ queue: name })}`, undefined, { signal }),
  trends: (parameters) => call("GET", `/v1/trends${query(parameters)}`),
  queue: (name) => call("GET", queue(name)),
  configure: (name, settings) => call("PUT", queue(name), settings),
  deleteQueue: (name) => call("DELETE", queue(name)),
  purge: (name) => call("POST", `${queue(name)}/purge`),
  redrive: (name, body) => call("POST", `${queue(name)}/redrive`, body),
  send: (name, body) => call("POST", `${queue(name)}/messages`, body),
  peek: (name, parameters, signal) => call("GET", `${queue(name)}/messages${query(parameters)}`, undefined, { signal }, parse),
  get: (name, id) => call("GET", message(name, id), undefined, {}, parse),
  result: (name, id) => call("GET", `${queue(name)}/results/${encode(id)}`, undefined, {}, parse),
  edit: (name, id, body) => call("PATCH", message(name, id), body),
  remove: (name, id) => call("DELETE", message(name, id)),
  failures: (name, signal) => call("GET", `${queue(name)}/failures`, undefined, { signal }),
  release: (name, id) => call("POST", `${message(name, id)}/release`, {}),
  history: (parameters, signal) => call("GET", `/v1/history${query(parameters)}`, undefined, { signal }),
  consumers: (name, signal) => call("GET", `${queue(name)}/consumers`, undefined, { signal }),
  claims: (signal) => call("GET", "/v1/claims", undefined, { signal }),
  releaseClaims: (name, group) => call("POST", `${queue(name)}/claims/${encode(group)}/release`, {}),
  schedules: (signal) => call("GET", "/v1/schedules", undefined, { signal }),
  schedule: (name, signal) => call("GET", schedule(name), undefined, { signal }, readSchedule),
  pauseSchedule: (name, paused) => call("PUT", schedule(name), { paused }, {}, readSchedule),
  runSchedule: (name) => call("POST", `${schedule(name)}/run`, undefined, {}, readSchedule),
  deleteSchedule: (name) => call("DELETE", schedule(name)),
  topics: (signal) => call("GET", "/v1/topics", undefined, { signal }),
  topic: (name, signal) => call("GET", topic(name), undefined, { signal }),
  configureTopic: (name, settings) => call("PUT", topic(name), settings),
  deleteTopic: (name) => call("DELETE", topic(name)),
  subscribe: (name, label, body) => call("PUT", subscription(name, label), body),
  unsubscribe: (name, label) => call("DELETE", subscription(name, label)),
  matchTopic: (name, body) => call("POST", `${topic(name)}/match`, body),
  publish: (name, body) => call("POST", `${topic(name)}/messages`, body),
  report: (method = "GET") => request(method, "/v1/report"),
  keys: () => call("GET", "/v1/keys"),
  createKey: (body) => call("POST", "/v1/keys", body),
  revokeKey: (id) => call("DELETE", `/v1/keys/${encode(id)}`),
};

// Live numbers

const SECONDS = 2;
const SILENCE = 7000; // ms without an event before the stream counts as dead
const POLLS = 30; // polls before the stream is tried again
const PATIENCE = 60000; // ms until a request times out

/** The current numbers of every queue; pages listen for updates. */
export class Live extends EventTarget {
  queues = new Map();
  state = "connecting";
  known = false;
  #run = 0;
  #requests = new AbortController();
  #hidden = () => { if (!document.hidden && this.state !== "live") this.start(); };

  constructor() {
    super();
    document.addEventListener("visibilitychange", this.#hidden);
  }

  start() {
    this.#end();
    this.#follow(this.#run);
  }

  stop() {
    this.#end();
    this.#set("signed out");
  }

  /** Ask for no more numbers, and do not wait for those that were asked for: a refusal would come for a key that is no
   * longer this tab's. */
  #end() {
    this.#run += 1;
    this.#requests.abort();
    this.#requests = new AbortController();
  }

  async #follow(run) {
    let pause = 500;
    let polls = 0;
    while (run === this.#run) {
      try {
        if (polls === 0) polls = await this.#stream(run, () => { pause = 500; }) ? 0 : POLLS;
        else {
          this.#apply(await api.stats(undefined, AbortSignal.any([this.#requests.signal, AbortSignal.timeout(PATIENCE)])), true);
          this.#set("polling");
          polls -= 1;
          await sleep(SECONDS * 1000);
        }
        continue;
      } catch (error) {
        if (run !== this.#run) return;
        if (error instanceof Refused && error.status === 401) return;
        this.#set("unreachable");
      }
      await sleep(pause);
      pause = Math.min(pause * 2, 5000);
    }
  }

  /** Listen until the stream ends. Returns false if no event arrives, e.g. behind a buffering proxy: poll instead. */
  async #stream(run, onEvent) {
    const stop = new AbortController();
    this.#requests.signal.addEventListener("abort", () => stop.abort(), { signal: stop.signal });
    let timer = setTimeout(() => stop.abort(), SILENCE);
    let received = false;
    try {
      const reply = await request("GET", `/v1/events?interval=${SECONDS}`, undefined, { signal: stop.signal });
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      let first = true;
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Unreachable("The broker closed the stream.");
        if (run !== this.#run) { stop.abort(); return true; }
        text += value;
        const parts = text.split("\n\n");
        text = parts.pop();
        for (const part of parts) {
          const data = part.split("\n").find((line) => line.startsWith("data: "));
          if (!data) continue;
          if (part.startsWith("event: problem")) {
            const problem = JSON.parse(data.slice(6));
            if (problem.status === 401) onUnauthorized(problem);
            throw new Refused(problem);
          }
          clearTimeout(timer);
          timer = setTimeout(() => stop.abort(), SILENCE);
          received = true;
          onEvent();
          this.#apply(JSON.parse(data.slice(6)), first);
          first = false;
          this.#set("live");
        }
      }
    } catch (error) {
      if (error.name === "AbortError") {
        if (!received) return false;
        throw new Unreachable("The event stream timed out.");
      }
      throw error;
    } finally {
      clearTimeout(timer);
      stop.abort();
    }
  }

  #apply(event, all) {
    setClock(event.at);
    if (all) {
      const names = new Set(event.queues.map((entry) => entry.name));
      for (const name of this.queues.keys()) if (!names.has(name)) this.queues.delete(name);
    }
    for (const entry of event.queues) this.queues.set(entry.name, entry);
    for (const name of event.gone ?? []) this.queues.delete(name);
    this.known = true;
    this.dispatchEvent(new CustomEvent("stats", { detail: event }));
  }

  #set(state) {
    if (state === this.state) return;
    const before = this.state;
    this.state = state;
    this.dispatchEvent(new CustomEvent("state", { detail: { state, before } }));
  }
}

export const sleep = (ms) => new Promise((done) => { setTimeout(done, ms); });
export const live = new Live();
