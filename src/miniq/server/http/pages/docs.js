// Shows /openapi.json and lets people try each call. Text is never inserted as HTML.
"use strict";

const JSON_TYPE = "application/json";
const SHOWN = 256 * 1024; // characters of a reply

const make = (tag, props = {}, ...children) => {
  const node = Object.assign(document.createElement(tag), props);
  node.append(...children);
  return node;
};

const resolve = (doc, schema) =>
  schema && schema.$ref ? doc.components.schemas[schema.$ref.split("/").pop()] : schema || {};

const typeOf = (doc, schema) => {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map((each) => typeOf(doc, each)).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `${typeOf(doc, schema.items)}[]`;
  return schema.format || schema.type || "any";
};

// The smallest value that has everything a schema requires.
const example = (doc, schema) => {
  const whole = resolve(doc, schema);
  if (whole.default !== undefined) return whole.default;
  if (whole.anyOf) return example(doc, whole.anyOf[0]);
  if (whole.enum) return whole.enum[0];
  if (whole.type === "object" || whole.properties) {
    const required = whole.required || [];
    return Object.fromEntries(required.map((name) => [name, example(doc, whole.properties[name])]));
  }
  if (whole.type === "array") return [example(doc, whole.items)];
  return { integer: 0, number: 0, boolean: false, null: null }[whole.type] ?? "";
};

// Text in which `code` stands between backticks.
const prose = (text) =>
  text.split("`").map((part, place) => (place % 2 ? make("code", { textContent: part }) : part));

// The fields of a record, and below each those of the records in it.
const rows = (doc, schema, prefix, seen) => {
  const whole = resolve(doc, schema);
  const required = new Set(whole.required || []);
  return Object.entries(whole.properties || {}).flatMap(([name, kind]) => {
    const details = kind.description || (kind.default !== undefined ? `default ${JSON.stringify(kind.default)}` : "");
    const row = make("tr", {},
      make("td", {}, make("code", { textContent: prefix + name }),
        required.has(name) ? make("span", { className: "required", textContent: " required" }) : ""),
      make("td", { textContent: typeOf(doc, kind) }), make("td", {}, ...prose(details)));
    const inner = kind.type === "array" ? kind.items : (kind.anyOf || [kind]).find((each) => each.$ref);
    if (!inner || !inner.$ref || seen.includes(inner.$ref)) return [row];
    return [row, ...rows(doc, inner, `${prefix}${name}${kind.type === "array" ? "[]" : ""}.`, [...seen, inner.$ref])];
  });
};

const fields = (doc, schema) => {
  const found = rows(doc, schema, "", [schema.$ref]);
  if (!found.length) return make("p", { textContent: typeOf(doc, schema) });
  const heads = ["Field", "Type", "Details"].map((name) => make("th", { textContent: name }));
  return make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...found));
};

// The errors of a call, which all have the same content.
const errors = (replies) => {
  const found = replies.map(([code, reply]) => make("tr", {}, make("td", {}, make("code", { textContent: code })), make("td", {}, ...prose(reply.description))));
  const heads = ["Status", "Reason"].map((name) => make("th", { textContent: name }));
  const media = Object.keys(replies[0][1].content || {}).join(", ");
  return make("div", { className: "errors" }, make("h3", {}, "Errors", make("small", { textContent: ` ${media}` })),
    make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...found)));
};

// One side of a call. Fields are listed where the content is JSON; of any other content the media type says enough.
const side = (doc, title, content) => {
  const media = Object.keys(content || {});
  const parts = [make("h3", {}, title, media.length ? make("small", { textContent: ` ${media.join(", ")}` }) : "")];
  if (content && content[JSON_TYPE]) parts.push(fields(doc, content[JSON_TYPE].schema));
  return parts;
};

const isText = (type) => /^text\/|[/+]json$|\/xml$/.test(type);

// Shows a reply while it comes, so that a stream of events without an end is shown too.
const show = async (reply, output) => {
  const type = (reply.headers.get("content-type") || "").split(";")[0];
  const head = `${reply.status} ${reply.statusText}`;
  output.textContent = head;
  if (!reply.body) return;
  if (!isText(type)) {
    const size = (await reply.arrayBuffer()).byteLength;
    if (size) output.textContent = `${head}\n(${size} bytes of ${type || "an unknown type"})`;
    return;
  }
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    text += part.value;
    if (text.length > SHOWN) {
      output.textContent = `${head}\n${text.slice(0, SHOWN)}\n(cut off here)`;
      await reader.cancel();
      return;
    }
    output.textContent = `${head}\n${text}`;
  }
  if (/json$/.test(type)) {
    try {
      output.textContent = `${head}\n${JSON.stringify(JSON.parse(text), null, 2)}`;
    } catch { /* shown as it came */ }
  }
};

const tryIt = (doc, path, method, operation) => {
  const form = make("form");
  const parameters = operation.parameters || [];
  const inputs = {};
  for (const parameter of parameters) {
    const id = `${operation.operationId}-${parameter.name}`;
    inputs[parameter.name] = make("input", { id, required: Boolean(parameter.required) });
    if (parameter.name === "queue" && parameter.in === "path") inputs.queue.value = "default";
    form.append(make("label", { htmlFor: id, textContent: `${parameter.name} (${parameter.in}, ${typeOf(doc, parameter.schema)})` }), inputs[parameter.name]);
  }
  let body = null;
  const request = operation.requestBody && (operation.requestBody.content || {})[JSON_TYPE];
  if (request) {
    const id = `${operation.operationId}-body`;
    const value = operation.operationId === "send" ? { body: "hello" } : example(doc, request.schema);
    const text = JSON.stringify(value, null, 2);
    body = make("textarea", { id, value: text, rows: Math.max(3, text.split("\n").length + 1), spellcheck: false });
    form.append(make("label", { htmlFor: id, textContent: "request body (JSON)" }), body);
  }
  const send = make("button", { textContent: "Try it" });
  const stop = make("button", { textContent: "Stop", type: "button", hidden: true, className: "stop" });
  const output = make("pre", { className: "reply", hidden: true, tabIndex: 0 });
  form.append(make("div", {}, send, " ", stop), output);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let url = path;
    const query = new URLSearchParams();
    const headers = body ? { "content-type": JSON_TYPE } : {};
    for (const parameter of parameters) {
      const value = inputs[parameter.name].value;
      if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(value));
      else if (value && parameter.in === "header") headers[parameter.name] = value;
      else if (value) query.set(parameter.name, value);
    }
    const key = document.getElementById("key").value;
    if (key) headers.authorization = `Bearer ${key}`;
    const aborter = new AbortController();
    stop.onclick = () => aborter.abort();
    send.disabled = true;
    stop.hidden = false;
    output.hidden = false;
    output.textContent = "waiting for the reply…";
    try {
      const options = { method: method.toUpperCase(), headers, body: body && body.value, signal: aborter.signal };
      await show(await fetch(url + (query.size ? `?${query}` : ""), options), output);
    } catch (error) {
      output.textContent += aborter.signal.aborted ? "\n(stopped)" : `\nNo reply: ${error.message}`;
    }
    send.disabled = false;
    stop.hidden = true;
  });
  return form;
};

const describe = (doc, path, method, operation) => {
  const inside = make("div", { className: "inside" });
  if (operation.description) inside.append(make("p", {}, ...prose(operation.description)));
  if (operation.requestBody) inside.append(...side(doc, "Request", operation.requestBody.content));
  const failures = Object.entries(operation.responses).filter(([code]) => !code.startsWith("2"));
  for (const [code, reply] of Object.entries(operation.responses)) {
    if (code.startsWith("2")) inside.append(make("div", { className: "answer" }, ...side(doc, `Reply ${code}`, reply.content)));
  }
  if (failures.length) inside.append(errors(failures));
  inside.append(make("h3", { textContent: "Try it" }), tryIt(doc, path, method, operation));
  return make("details", { id: operation.operationId },
    make("summary", {}, make("span", { className: "method", textContent: method.toUpperCase() }),
      make("span", { className: "path", textContent: path }), make("span", { className: "what" }, ...prose(operation.summary))),
    inside);
};

const openLinked = () => {
  const linked = location.hash && document.getElementById(location.hash.slice(1));
  if (linked && linked.tagName === "DETAILS") {
    linked.open = true;
    linked.scrollIntoView();
  }
};

const render = (doc) => {
  document.getElementById("about").replaceChildren(...prose(`${doc.info.description} Version ${doc.info.version}.`));
  const sections = new Map();
  for (const [path, methods] of Object.entries(doc.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = (operation.tags || ["other"])[0];
      if (!sections.has(tag)) sections.set(tag, make("section", {}, make("h2", { textContent: tag })));
      sections.get(tag).append(describe(doc, path, method, operation));
    }
  }
  document.getElementById("operations").append(...sections.values());
  openLinked();
};

addEventListener("hashchange", openLinked);
fetch("/openapi.json").then((reply) => reply.json()).then(render).catch((error) => {
  document.getElementById("about").textContent = `Cannot load /openapi.json: ${error.message}`;
});
