// Messages that are tasks of Celery, Dramatiq or MiniQ: what is called with which arguments.

const SHORT = 120;
const cut = (text) => (text.length > SHORT ? `${text.slice(0, SHORT)}…` : text);
const inside = (text) => text.replace(/^[([{]/, "").replace(/,?[)\]}]$/, "");
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const values = (given) => (given ?? []).map((one) => JSON.stringify(one));
const pairs = (given) => Object.entries(given ?? {}).map(([name, value]) => `${name}=${JSON.stringify(value)}`);

/** The task of a message: who made it, name, arguments on one line, and what it says of its retries; null if it is none. */
export function taskOf(message) {
  const body = message.body;
  if (isObject(body) && typeof body.actor_name === "string") {
    const options = body.options ?? {};
    return { kind: "Dramatiq", name: body.actor_name, args: cut([...values(body.args), ...pairs(body.kwargs)].join(", ")), eta: options.eta && new Date(options.eta).toISOString(), retries: options.retries };
  }
  // Celery's protocol 2: in the headers of the message, or of the envelope that Kombu makes.
  const headers = message.headers?.task ? message.headers : isObject(body) && isObject(body.headers) && body.headers.task ? body.headers : null;
  if (!headers) return null;
  if (headers.argsrepr !== undefined || headers.kwargsrepr !== undefined) {
    const args = [inside(headers.argsrepr ?? ""), inside(headers.kwargsrepr ?? "")].filter(Boolean).join(", ");
    return { kind: "Celery", name: headers.task, args: cut(args), eta: headers.eta && headers.eta !== "None" ? headers.eta : null, retries: Number(headers.retries) || 0 };
  }
  return { kind: "MiniQ", name: headers.task, args: cut((isObject(body) ? pairs(body) : body === undefined ? [] : [JSON.stringify(body)]).join(", ")) };
}

export const taskLine = ({ name, args }) => `${name}(${args})`;
