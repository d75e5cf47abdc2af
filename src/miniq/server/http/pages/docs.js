// Shows /openapi.json, and lets people try each call. Text is never written as HTML.
"use strict";

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
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(doc, one)).join(" or ");
  if (schema.type === "array") return typeOf(doc, schema.items) + "[]";
  return schema.format || schema.type || "any";
};

const fields = (doc, schema) => {
  const whole = resolve(doc, schema);
  const table = make("table");
  const required = new Set(whole.required || []);
  for (const [name, kind] of Object.entries(whole.properties || {})) {
    const said = kind.description || (kind.default !== undefined ? `default ${JSON.stringify(kind.default)}` : "");
    table.append(make("tr", {}, make("td", {}, make("code", { textContent: name + (required.has(name) ? " *" : "") })),
      make("td", { textContent: typeOf(doc, kind) }), make("td", { textContent: said })));
  }
  return table;
};

const tryIt = (doc, path, method, operation) => {
  const form = make("form");
  const inputs = {};
  for (const parameter of operation.parameters || []) {
    const id = `${operation.operationId}-${parameter.name}`;
    inputs[parameter.name] = make("input", { id, required: Boolean(parameter.required) });
    if (parameter.name === "queue") inputs.queue.value = "default";
    form.append(make("label", { htmlFor: id, textContent: `${parameter.name} (${parameter.in})` }), inputs[parameter.name]);
  }
  let body = null;
  if (operation.requestBody) {
    const id = `${operation.operationId}-body`;
    body = make("textarea", { id, value: operation.operationId === "send" ? '{"body": "hello"}' : "{}" });
    form.append(make("label", { htmlFor: id, textContent: "request" }), body);
  }
  const answer = make("pre", { hidden: true });
  form.append(make("div", {}, make("button", { textContent: "Try it" })), answer);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    let url = path;
    const query = new URLSearchParams();
    for (const parameter of operation.parameters || []) {
      const value = inputs[parameter.name].value;
      if (parameter.in === "path") url = url.replace(`{${parameter.name}}`, encodeURIComponent(value));
      else if (value) query.set(parameter.name, value);
    }
    const headers = body ? { "content-type": "application/json" } : {};
    const key = document.getElementById("key").value;
    if (key) headers.authorization = `Bearer ${key}`;
    answer.hidden = false;
    answer.textContent = "…";
    try {
      const reply = await fetch(url + (query.size ? `?${query}` : ""), { method: method.toUpperCase(), headers, body: body && body.value });
      const text = await reply.text();
      let shown = text;
      try { shown = JSON.stringify(JSON.parse(text), null, 2); } catch { /* not JSON: as it is */ }
      answer.textContent = `${reply.status} ${reply.statusText}\n${shown}`;
    } catch (error) {
      answer.textContent = `The server did not answer: ${error.message}`;
    }
  });
  return form;
};

const show = (doc) => {
  document.getElementById("about").textContent = `${doc.info.description} Version ${doc.info.version}.`;
  const sections = new Map();
  for (const [path, methods] of Object.entries(doc.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const tag = operation.tags[0];
      if (!sections.has(tag)) sections.set(tag, make("section", {}, make("h2", { textContent: tag })));
      const inside = make("div", { className: "inside" });
      if (operation.description) inside.append(make("p", { textContent: operation.description }));
      const request = operation.requestBody && operation.requestBody.content["application/json"].schema;
      if (request) inside.append(make("strong", { textContent: "Request" }), fields(doc, request));
      const done = Object.entries(operation.responses).find(([code]) => code.startsWith("2"));
      const reply = done && done[1].content && done[1].content["application/json"].schema;
      if (reply) inside.append(make("strong", { textContent: `Reply ${done[0]}` }), fields(doc, reply));
      inside.append(tryIt(doc, path, method, operation));
      sections.get(tag).append(make("details", { id: operation.operationId },
        make("summary", {}, make("span", { className: "method", textContent: method.toUpperCase() }),
          make("span", { className: "path", textContent: path }), make("span", { className: "what", textContent: operation.summary })),
        inside));
    }
  }
  document.getElementById("operations").append(...sections.values());
};

fetch("/openapi.json").then((reply) => reply.json()).then(show).catch((error) => {
  document.getElementById("about").textContent = `Cannot load /openapi.json: ${error.message}`;
});
