// Messages that are tasks of Celery, Dramatiq or MiniQ: what is called with which arguments. Tasks of Celery are shown as by
// `miniq peek --celery` (celery/summary.py).
import { isoTime } from "./dom.js";

const SHORT = 120;
const cut = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const values = (given) => (Array.isArray(given) ? given : []).map((one) => JSON.stringify(one));
const pairs = (given) => Object.entries(given ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`);
/** The value of one of Celery's headers: text, or JSON; null is none. */
function value(header) {
  if (typeof header !== "string") return header ?? null;
  try { return JSON.parse(header); } catch { return header === "None" ? null : header; }
}
const whole = (header) => (Number.isInteger(value(header)) ? value(header) : 0);
const isText = (header) => typeof value(header) === "string";
/** A header that is text; in quotes if it would read as something else. */
const text = (header) => (isText(header) ? value(header) : typeof header === "string" ? header : JSON.stringify(header) ?? "");
/** `(2, 3)` and `{'unit': 'cm'}`, which are Python's, as in a call. */
function call(args, kwargs) {
  const inner = /^[([]/.test(args) && /[)\]]$/.test(args) ? args.slice(1, -1).replace(/,+$/, "") : args;
  return [inner, kwargs && kwargs !== "{}" && `**${kwargs}`].filter(Boolean).join(", ");
}

/** The task of a message: who made it, name, arguments on one line, and what it says of its retries; null if it is none. */
export function taskOf(message) {
  const body = message.body;
  if (isObject(body) && typeof body.actor_name === "string") {
    const options = body.options ?? {};
    return { kind: "Dramatiq", name: body.actor_name, args: cut([...values(body.args), ...pairs(body.kwargs)].join(", ")), eta: options.eta && isoTime(options.eta), retries: whole(options.retries) };
  }
  // Celery's protocol 2: in the headers of the message, or of the envelope that Kombu makes.
  const headers = message.headers?.task ? message.headers : isObject(body) && isObject(body.headers) && body.headers.task ? body.headers : null;
  if (!headers) return null;
  const celery = { kind: "Celery", name: text(headers.task), eta: isText(headers.eta) ? value(headers.eta) : null, retries: whole(headers.retries) };
  if (headers.argsrepr !== undefined || headers.kwargsrepr !== undefined) return { ...celery, args: cut(call(text(headers.argsrepr), text(headers.kwargsrepr))) };
  if (Array.isArray(body) && Array.isArray(body[0]) && isObject(body[1])) return { ...celery, args: cut([...values(body[0]), ...pairs(body[1])].join(", ")) };
  return { kind: "MiniQ", name: celery.name, args: cut((isObject(body) ? pairs(body) : body === undefined ? [] : [JSON.stringify(body)]).join(", ")) };
}

export const taskLine = ({ name, args }) => `${name}(${args})`;
