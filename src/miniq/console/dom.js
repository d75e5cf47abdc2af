// DOM nodes, number and time formats. Text is only ever set as text; nothing here parses HTML.

/** An element: h("td", {class: "num", onclick: f}, "text", node, ...). null, undefined and false are skipped. */
export const h = (tag, props = {}, ...children) => fill(document.createElement(tag), props, children);

const SVG = "http://www.w3.org/2000/svg";
export const s = (tag, props = {}, ...children) => fill(document.createElementNS(SVG, tag), props, children);

function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !(node instanceof SVGElement) && name !== "list" && name !== "form") {
      if (name === "class") node.className = value; else node[name] = value;
    } else node.setAttribute(name === "class" ? "class" : name, value === true ? "" : value);
  }
  node.append(...children.flat(9).filter((one) => one !== null && one !== undefined && one !== false));
  return node;
}

/** Set a node's text only if it differs, to avoid a redraw. */
export const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };

export const clear = (node, ...children) => { node.replaceChildren(...children.flat(9).filter(Boolean)); return node; };

const whole = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const count = (n) => (n < 100000 ? whole.format(n) : compact.format(n));
export const exact = (n) => whole.format(n);
export const rate = (n) => (n === 0 ? "0" : n < 10 ? n.toFixed(1) : count(Math.round(n)));
/** The first line of an error. */
export const firstLine = (error) => error.split("\n", 1)[0].slice(0, 200);

export const plural = (n, word) => `${exact(n)} ${word}${n === 1 ? "" : "s"}`;

export function bytes(n) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (n < 1024) return unit === "B" ? `${n} B` : `${n.toFixed(1)} ${unit}`;
    n /= 1024;
  }
  return `${n.toFixed(1)} TiB`;
}

export function duration(seconds) {
  if (Number.isNaN(seconds)) return "–";
  const n = Math.max(0, seconds);
  if (n < 1) return n === 0 ? "0 s" : "<1 s";
  if (n < 60) return `${Math.floor(n)} s`;
  if (n < 3600) return `${Math.floor(n / 60)} min`;
  const short = (value) => value.toFixed(value < 10 ? 1 : 0).replace(".0", "");
  return n < 86400 ? `${short(n / 3600)} h` : `${short(n / 86400)} d`;
}

/** A time that may be far below a second: 0.8 ms, 45 ms, 1.2 s, 3 min. */
export function brief(seconds) {
  if (seconds >= 60) return duration(seconds);
  const [n, unit] = seconds < 1 ? [seconds * 1000, "ms"] : [seconds, "s"];
  return `${n.toFixed(n < 10 ? 1 : 0).replace(".0", "")} ${unit}`;
}

let skew = 0;
/** Follow the broker's clock: ages are relative to it, not to this machine's clock. */
export const setClock = (moment) => { skew = Date.parse(moment) - Date.now(); };
export const now = () => Date.now() + skew;
export const age = (moment) => duration((now() - Date.parse(moment)) / 1000);
export const until = (moment) => {
  const left = (Date.parse(moment) - now()) / 1000;
  if (Number.isNaN(left)) return "–";
  return left > 0 ? `in ${duration(left)}` : `${duration(-left)} ago`;
};

const clock = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });
const hours = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23" });
const minutes = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const days = new Intl.DateTimeFormat(undefined, { dateStyle: "full" });
/** A date as it is shown; what is not a date as it is. Formats throw on invalid dates, and messages come from anyone. */
function shown(format, given) {
  const plain = given?.rawJSON ? Number(given.rawJSON) : given; // see `parse`
  const date = typeof plain === "object" ? null : new Date(plain);
  return date && !Number.isNaN(date.getTime()) ? format(date) : typeof plain === "object" ? JSON.stringify(plain) : String(plain);
}
/** A date in ISO 8601. */
export const isoTime = (given) => shown((date) => date.toISOString(), given);
/** A formatted time, exact on hover. */
export const moment = (text) => h("time", { dateTime: text, title: text }, shown(clock.format, text));
/** The time of day to the millisecond; `day` is the date that belongs to it, shown once. */
export const timeOfDay = (text) => h("time", { dateTime: text, title: text, class: "mono" }, shown(hours.format, text));
export const day = (text) => shown(days.format, text);
export const hourAndMinute = (ms) => shown(minutes.format, ms);

// JSON whose numbers keep their source text where the browser supports it, so that 1.0 and 12345678901234567890 survive
// an edit. Such a number is an object that only JSON.stringify understands.
const raw = typeof JSON.rawJSON === "function" ? JSON.rawJSON : null;
export const parse = (text) => JSON.parse(text, (key, value, context) =>
  (raw && typeof value === "number" && context?.source && String(value) !== context.source ? raw(context.source) : value));

export const encode = encodeURIComponent;
export const queueLink = (name) => `#/q/${encode(name)}`;
export const messageLink = (queue, id) => `#/q/${encode(queue)}/m/${encode(id)}`;

const LONGEST = 300; // characters of a body that a row shows
const oneLine = (message) => {
  if (message.body === undefined) return `${message.content_type}, ${bytes(Math.floor((message.data ?? "").length * 0.75))}`;
  return typeof message.body === "string" ? message.body : JSON.stringify(message.body);
};
const cut = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST)}…` : text);

/** A body on one line. */
export const preview = (message) => cut(oneLine(message));

const [FEWEST, HEAD, LEAD] = [44, 14, 24]; // characters at the start in common, those of them that stay, and those before the difference

/** The bodies of the rows of a list. Of a long start that is the same as in a neighbour, most is left out: the end of a row
 * is cut off, and what differs should not be in it. */
export function previews(messages) {
  const texts = messages.map(oneLine);
  const common = (a, b) => {
    if (b === undefined || a === b) return 0;
    let length = 0;
    while (length < a.length && a[length] === b[length]) length += 1;
    return length;
  };
  return texts.map((text, place) => {
    const same = Math.max(common(text, texts[place - 1]), common(text, texts[place + 1]));
    if (same < FEWEST) return cut(text);
    const start = Math.max(HEAD, same - LEAD, text.lastIndexOf(",", same - 1) + 1);
    return `${text.slice(0, HEAD)}…${cut(text.slice(start))}`;
  });
}

/** Whether the page is as narrow as on a phone: rows are cards, and hints are short. */
export const isNarrow = () => matchMedia("(max-width: 720px)").matches;
/** The console's name for a state: the API's `leased` is shown as in-flight. */
export const stateLabel = (status) => (status === "leased" ? "in-flight" : status);
/** Who has an in-flight message, and until when. */
export const holder = ({ consumer, lease_until }) => `${consumer ?? "unnamed consumer"}, ${lease_until ? `lease ends ${until(lease_until)}` : "in a claim"}`;

export const badge = (text, kind = text) => h("span", { class: `badge ${kind}` }, text);
export const tile = (label, value, kind = "") => h("div", { class: `tile ${kind}` }, h("b", {}, value), h("span", {}, label));
export const field = (label, input, wide = false) =>
  h("label", { class: wide ? "field wide" : "field" }, h("span", {}, label), input);

/** Whether the pattern of a scope, such as send:orders.*, covers a queue. */
export function covers(scope, queue) {
  const text = (scope.split(":")[1] ?? "*").split("*").map((part) => part.replace(/[.\-]/g, "\\$&")).join(".*");
  return new RegExp(`^${text}$`).test(queue ?? "");
}

/** An empty state, with what to do about it: commands for a shell, or lines of Python, that can be copied. */
export const empty = (title, text, ...commands) =>
  h("div", { class: "empty" }, h("h2", {}, title), h("p", {}, text), commands.filter(Boolean).map(snippet));

function snippet(text) {
  const kind = text.startsWith("import ") ? "python" : "curl";
  const button = h("button", { type: "button", class: "plain", "aria-label": kind === "python" ? "Copy the lines of Python" : "Copy the command", onclick: () =>
    copy(text).then(() => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 2000); }) }, "Copy");
  return h("div", { class: "snippet" }, h("pre", { class: kind }, text), button);
}

/** Copy a text. Browsers have a clipboard for pages only where the address is https or this machine. */
export async function copy(text) {
  if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
  const area = h("textarea", { value: text, class: "visually-hidden" });
  (document.querySelector("dialog[open]") ?? document.body).append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** A call of this broker's API by curl. */
export const curl = (keyed, path, body, method = "") => `curl ${method ? `-X ${method} ` : ""}${location.origin}/v1${path}${keyed ? " -H 'Authorization: Bearer KEY'" : ""} -d '${JSON.stringify(body)}'`;
/** A line of Python with a client of this broker, `mq`. */
export const python = (keyed, line) => `import miniq\nwith miniq.connect("${location.origin}"${keyed ? ', api_key="KEY"' : ""}) as mq:\n    ${line}`;
/** How to send a message to a queue, in a shell and in Python. */
export const sending = (queue, keyed) => [curl(keyed, `/queues/${queue}/messages`, { body: "hello" }), python(keyed, `mq.queue("${queue}").send("hello")`)];
/** Whether calls need a key. */
export const isKeyed = (identity) => Boolean(identity && !identity.open);

/** Work on many things, a few at a time; how many failed, with the first error. */
export async function each(things, work, most = 8) {
  const left = [...things];
  const failed = { count: 0, error: null };
  const one = async () => { while (left.length) await work(left.pop()).catch((error) => { failed.count += 1; failed.error ??= error; }); };
  await Promise.all(Array.from({ length: Math.min(most, left.length) }, one));
  return failed;
}

/** What errors of one group have in common; see `broker/failures.py`. */
export const pattern = (error) => firstLine(error.trimStart()).replace(/\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b|\b0x[0-9a-f]+\b|\d+/gi, "#");

/** Download bytes as a file. */
export function download(raw, name) {
  const url = URL.createObjectURL(new Blob([raw], { type: "application/octet-stream" }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}
