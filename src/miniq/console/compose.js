// The dialogs to send a message and to edit one.
import { api } from "./api.js";
import { field, h, isoTime, parse } from "./dom.js";
import { ask } from "./dialogs.js";

/** The fields of a message that are free text, with their labels. */
export const TEXTS = { key: "Key", recipient: "Recipient", group: "Group", dedup_id: "Dedup ID" };

const lines = (headers) => Object.entries(headers ?? {}).map(([name, value]) => `${name}: ${value}`).join("\n");

/** Headers from lines of NAME: VALUE. */
export function headersOf(text) {
  const found = {};
  for (const line of text.split("\n")) {
    if (!line.trim()) continue;
    const colon = line.indexOf(":");
    if (colon < 1) throw new Error(`headers: "${line}" is invalid; use NAME: VALUE.`);
    found[line.slice(0, colon).trim()] = line.slice(colon + 1).trim();
  }
  return found;
}

const isJson = (type) => type === "application/json" || /\+json(;|$)/.test(type);

/** Body and content type: JSON, plain text, or base64 for other types. */
function bodyFields(message) {
  const type = h("input", { value: message?.content_type ?? "application/json", list: "types", autocomplete: "off" });
  const start = !message ? '{\n  "hello": "world"\n}'
    : message.body === undefined ? message.data : isJson(message.content_type) ? JSON.stringify(message.body, null, 2) : message.body;
  const text = h("textarea", { value: start, spellcheck: false, "aria-label": "Body", rows: 8 });
  const note = h("p", { class: "note" });
  const look = () => {
    note.textContent = isJson(type.value) ? "JSON" : type.value.startsWith("text/") ? "Plain text" : "Base64-encoded bytes";
    if (!isJson(type.value)) return;
    try { JSON.parse(text.value); } catch (error) { note.textContent = `Invalid JSON: ${error.message}`; }
  };
  text.addEventListener("input", look);
  type.addEventListener("input", look);
  look();
  return {
    nodes: [field("Body", text, true), note, field("Content type", type),
      h("datalist", { id: "types" }, ["application/json", "text/plain", "application/octet-stream"].map((value) => h("option", { value })))],
    changed: () => text.value !== start || type.value !== (message?.content_type ?? "application/json"),
    read() {
      const content_type = type.value.trim() || "application/json";
      if (isJson(content_type)) {
        try { return { body: parse(text.value), content_type }; } catch { throw new Error("The body is not valid JSON."); } // the note under it says why
      }
      return content_type.startsWith("text/") ? { body: text.value, content_type } : { data: text.value.trim(), content_type };
    },
  };
}

const number = (input) => (input.value.trim() === "" ? undefined : Number(input.value));

/** Ask for a message and send it to a queue, or `post` it to a topic. */
export async function send(name, { title = `Send to ${name}`, action = "Send", post = api.send } = {}) {
  const body = bodyFields(null);
  const priority = h("input", { type: "number", min: 0, max: 9, value: 0 });
  const delay = h("input", { type: "number", min: 0, step: "any", placeholder: "queue default" });
  const moment = h("input", { type: "datetime-local", step: 1 });
  const ttl = h("input", { type: "number", min: 0, step: "any" });
  const texts = Object.fromEntries(Object.keys(TEXTS).map((name) => [name, h("input", { autocomplete: "off" })]));
  const headers = h("textarea", { rows: 2, placeholder: "name: value", spellcheck: false });
  return ask({
    title, action,
    body: [body.nodes, h("div", { class: "fields" }, field("Priority (0 to 9)", priority), field("Delay (seconds)", delay)),
      h("details", {}, h("summary", {}, "More options"), h("div", { class: "fields" },
        field("Deliver at (instead of a delay)", moment), field("Time to live (seconds)", ttl), Object.entries(TEXTS).map(([name, label]) => field(label, texts[name])), field("Headers", headers, true)))],
    submit: () => {
      const draft = { ...body.read(), priority: Number(priority.value), delay: number(delay), ttl: number(ttl) };
      if (moment.value) draft.deliver_at = isoTime(moment.value);
      for (const [name, input] of Object.entries(texts)) if (input.value) draft[name] = input.value;
      const given = headersOf(headers.value);
      if (Object.keys(given).length) draft.headers = given;
      return post(name, draft);
    },
  });
}

/** Edit a message; with another `action`, it may also stay as it is. */
export async function edit(queue, message, action) {
  const body = bodyFields(message);
  const priority = h("input", { type: "number", min: 0, max: 9, value: message.priority });
  const delay = h("input", { type: "number", min: 0, step: "any", placeholder: "unchanged" });
  const start = lines(message.headers);
  const headers = h("textarea", { rows: 3, value: start, spellcheck: false });
  return ask({
    title: "Edit message", action, body: [body.nodes, h("div", { class: "fields" },
      field("Priority (0 to 9)", priority), field("Delay from now (seconds)", delay), field("Headers", headers, true))],
    submit: () => {
      const change = body.changed() ? body.read() : {};
      if (Number(priority.value) !== message.priority) change.priority = Number(priority.value);
      if (delay.value.trim()) change.delay = Number(delay.value);
      if (headers.value !== start) change.headers = headersOf(headers.value);
      if (action && !Object.keys(change).length) return true;
      if (!Object.keys(change).length) throw new Error("No changes to save.");
      return api.edit(queue, message.id, change);
    },
  });
}
