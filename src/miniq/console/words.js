// What is wrong with a queue, in words. The broker decides what is wrong (`problems` of /v1/stats); this says it.
import { live } from "./api.js";
import { age, count, firstLine, plural } from "./dom.js";

const OFTEN = 0.25; // the share of failed attempts from which a queue is in trouble; below, work fails now and then

/** How often work fails: "1 in 3 of the last 30 attempts". */
export function share({ failed, attempts }) {
  if (failed === attempts) return `${attempts === 1 ? "the last attempt" : `all of the last ${count(attempts)} attempts`}`;
  return attempts / failed >= 1.8 ? `1 in ${Math.round(attempts / failed)} of the last ${count(attempts)} attempts` : `${count(failed)} of the last ${count(attempts)} attempts`;
}

/** Messages without a consumer; how long they wait, where that is less than the consumer is gone. */
function unattended({ ready, oldest, unattended_since: since }) {
  const waits = oldest && !(since && Date.parse(oldest) <= Date.parse(since)) && (!since || age(oldest) !== age(since));
  return `${count(ready)} ready${waits ? ` for ${age(oldest)}` : ""}, no consumer ${since ? `for ${age(since)}` : "yet"}`;
}

const often = ({ failures }) => failures.failed >= failures.attempts * OFTEN;
const failing = (q) => `${often(q) ? "failing" : "some fail"}: ${share(q.failures)}`;
// Of each kind: what is said in one line for the whole broker, and what is added where there is room.
const TEXTS = {
  stuck_claim: [({ claim }) => `claim of group ${claim.group} stuck for ${age(claim.made_at)}: ${plural(claim.messages, "message")}`],
  failing: [failing, ({ failures }) => `: ${firstLine(failures.error)}`],
  no_consumer: [unattended],
  full: [(q) => `full: ${plural(q.total, "message")}, new ones are refused`],
  paused: [(q) => (q.ready ? `paused: ${plural(q.ready, "message")} ${q.ready === 1 ? "waits" : "wait"}` : "paused")],
};

/** How bad a problem is: `bad` stops work, `warn` slows it down. */
const severity = (kind, q) => (kind === "paused" || (kind === "failing" && !often(q)) ? "warn" : "bad");
const told = (kind, q) => ({ kind, severity: severity(kind, q), short: TEXTS[kind]?.[0](q) ?? kind, text: TEXTS[kind]?.map((write) => write(q)).join("") ?? kind });

/** The problems of a queue, the worst first: kind, severity, and text, in one line and in full. */
export const problems = (q) => q.problems.map((kind) => told(kind, q)).sort((a, b) => (a.severity > b.severity) - (a.severity < b.severity));

/** How bad its worst problem is; none if it is only paused. */
export const trouble = (q) => { const grades = q.problems.filter((kind) => kind !== "paused").map((kind) => severity(kind, q)); return grades.includes("bad") ? "bad" : grades[0]; };
/** Its worst problem; none if it is only paused. */
export const worst = (q) => problems(q).find(({ kind }) => kind !== "paused");

/** How many consumers a queue has: those seen in the last five minutes, unless none was seen for so long that it has no consumer. */
export const consumersOf = (q) => (q.unattended_since ? 0 : q.consumers);

/** Why a message died of which no error is known. */
export const REASONS = { max_receives: "exceeded max_receives", rejected: "rejected" };
export const deathOf = (error) => REASONS[error] ?? firstLine(error);

/** What is said of a queue's dead letters. */
export const deaths = (q) => `${plural(q.dead, "dead letter")}${q.last_death ? `, the last ${age(q.last_death.at)} ago: ${deathOf(q.last_death.error)}` : ""}`;

/** By dead-letter queue, the queues that it belongs to. */
export function origins() {
  const found = new Map();
  for (const q of live.queues.values()) if (q.dead_letter_queue && live.queues.has(q.dead_letter_queue)) found.set(q.dead_letter_queue, [...(found.get(q.dead_letter_queue) ?? []), q.name]);
  return found;
}
