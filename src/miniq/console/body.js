// The body of a message: JSON in colours that folds, text, or a hex dump.
import { bytes, copy, download, h } from "./dom.js";
import { toast } from "./dialogs.js";

const SHOWN = 64 * 1024;
const FOLDS = 5000; // lines that can be folded; more would take the browser long
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|\b(true|false|null)\b|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;

export function bodyCard(message, title = "Body") {
  const { text, kind, raw, name, json } = read(message);
  const pre = h("pre", { class: "body", tabIndex: 0, dir: "auto" });
  const show = (shown) => pre.replaceChildren(...(json && shown === text ? folding(shown) : [shown]));
  show(text.length > SHOWN ? text.slice(0, SHOWN) : text);
  const rest = text.length > SHOWN && h("p", { class: "note" }, `Showing the first ${bytes(SHOWN)} of ${bytes(text.length)}. `,
    h("button", { type: "button", onclick: (event) => { pre.textContent = text; event.currentTarget.parentNode.remove(); } }, "Show all"));
  return h("section", { class: "card" }, h("div", { class: "row" }, h("h2", {}, `${title} (${kind})`),
    h("button", { type: "button", class: "plain", onclick: () => copy(text).then(() => toast("Copied.")) }, "Copy"),
    h("button", { type: "button", class: "plain", onclick: () => download(raw, name) }, "Download")), pre, rest);
}

/** Formatted JSON as nodes, with the same text: every object and list of several lines has a button that folds it. */
function folding(text) {
  const root = [];
  const open = [root]; // what is being filled
  const lines = text.split("\n");
  lines.forEach((line, number) => {
    const end = number < lines.length - 1 ? "\n" : "";
    const closes = /^\s*[}\]]/.test(line);
    if (closes && open.length > 1) open.pop();
    const into = open.at(-1);
    if (/[{[]$/.test(line) && number < FOLDS) {
      const inner = h("span");
      const button = h("button", { type: "button", class: "fold", "aria-expanded": "true", "aria-label": `Fold line ${number + 1}`, onclick: () => {
        inner.hidden = !inner.hidden;
        button.setAttribute("aria-expanded", String(!inner.hidden));
      } });
      into.push(button, ...coloured(line), inner);
      inner.append(end);
      const parts = [];
      parts.push = (...nodes) => { inner.append(...nodes); return 0; };
      open.push(parts);
    } else into.push(...coloured(line), end);
  });
  return root;
}

function coloured(line) {
  const nodes = [];
  let at = 0;
  for (const match of line.matchAll(TOKEN)) {
    const [token, text, colon] = match;
    nodes.push(line.slice(at, match.index));
    if (text) nodes.push(h("span", { class: colon ? "j-key" : "j-text" }, text), colon ?? "");
    else nodes.push(h("span", { class: "j-value" }, token));
    at = match.index + token.length;
  }
  nodes.push(line.slice(at));
  return nodes.filter((node) => node !== "");
}

/** A body as display text, and its raw bytes. */
function read(message) {
  if (message.body === undefined) {
    const raw = Uint8Array.from(atob(message.data ?? ""), (letter) => letter.charCodeAt(0));
    return { text: dump(raw.subarray(0, 16384)), kind: `binary, ${bytes(raw.length)}`, raw, name: `${message.id}.bin` };
  }
  const json = message.content_type === "application/json" || /\+json(;|$)/.test(message.content_type);
  const text = json ? JSON.stringify(message.body, null, 2) : message.body;
  const raw = new TextEncoder().encode(json ? JSON.stringify(message.body) : text);
  return { text, kind: `${json ? "JSON" : "text"}, ${bytes(raw.length)}`, raw, json, name: `${message.id}.${json ? "json" : "txt"}` };
}

/** Bytes as a hex dump. */
function dump(raw) {
  const rows = [];
  for (let at = 0; at < raw.length; at += 16) {
    const row = raw.subarray(at, at + 16);
    const hex = [...row].map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
    rows.push(`${at.toString(16).padStart(6, "0")}  ${hex.padEnd(47)}  ${[...row].map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return rows.join("\n");
}
