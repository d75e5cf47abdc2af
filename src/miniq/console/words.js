// What is wrong with a queue, in words. The broker decides what is wrong (`problems` of /v1/stats); this says it.
import { live } from "./api.js";
import { age, count, firstLine, plural } from "./dom.js";

/** How often work fails: "1 in 3 of the last 30 attempts". */
export function share({ failed, attempts }) {
  if (failed === attempts) return `${attempts === 1 ? "the last attempt" : `all of the last ${count(attempts)} attempts`}`;
  return attempts / failed >= 1.8 ? `1 in ${Math.round(attempts / failed)} of the last ${count(attempts)} attempts` : `${count(failed)} of the last ${count(attempts)} attempts`;
}

const TEXTS = {
  stuck_claim: ({ claim }) => `claim of group ${claim.group} stuck for ${age(claim.made_at)}: ${plural(claim.messages, "message")}`,
  failing: ({ failures }) => `failing: ${share(failures)}: ${firstLine(failures.error)}`,
  no_consumer: (q) => `${count(q.ready)} ready, no consumer ${q.unattended_since ? `for ${age(q.unattended_since)}` : "yet"}`,
  full: (q) => `full: ${plural(q.total, "message")}, new ones are refused`,
  paused: (q) => (q.ready ? `paused: ${plural(q.ready, "message")} ${q.ready === 1 ? "waits" : "wait"}` : "paused"),
};
const SHORT = { stuck_claim: "stuck claim", failing: "failing", no_consumer: "no consumer", full: "full" };

/** The problems of a queue, the worst first: kind and text. */
export const problems = (q) => q.problems.map((kind) => ({ kind, text: TEXTS[kind]?.(q) ?? kind }));

/** Its worst problem in two words; none if it is only paused. */
export const worst = (q) => SHORT[q.problems[0]];

/** Why a message died of which no error is known. */
export const REASONS = { max_receives: "received too often", rejected: "rejected" };
export const deathOf = (error) => REASONS[error] ?? firstLine(error);

/** What is said of a queue's dead letters. */
export const deaths = (q) => `${plural(q.dead, "dead letter")}${q.last_death ? `, the last ${age(q.last_death.at)} ago: ${deathOf(q.last_death.error)}` : ""}`;

/** By dead-letter queue, the queues that it belongs to. */
export function origins() {
  const found = new Map();
  for (const q of live.queues.values()) if (q.dead_letter_queue && live.queues.has(q.dead_letter_queue)) found.set(q.dead_letter_queue, [...(found.get(q.dead_letter_queue) ?? []), q.name]);
  return found;
}
