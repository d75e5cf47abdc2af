// The settings of a queue as a form; only changed settings are sent.
import { field, h } from "./dom.js";

const SETTINGS = [
  ["visibility_timeout", "Visibility timeout (seconds)", 30],
  ["max_receives", "Max receives", null, "no limit"],
  ["dead_letter_queue", "Dead-letter queue", null, "NAME.dead"],
  ["retention", "Retention (seconds)", 1209600],
  ["delay", "Default delay (seconds)", 0],
  ["dedup_window", "Dedup window (seconds)", 300],
  ["max_length", "Max messages (0: no limit)", 0],
  ["max_bytes", "Max bytes (0: no limit)", 0],
  ["claim_retention", "Claim retention (seconds)", 3600],
];

/** A settings form; for a new queue (`settings` is null) it shows the defaults. */
export function settingsForm(settings, disabled = false) {
  const given = settings ?? Object.fromEntries(SETTINGS.map(([name, , value]) => [name, value]));
  const inputs = {};
  const known = SETTINGS.filter(([name]) => settings === null ? name !== "claim_retention" : name in given);
  const nodes = known.map(([name, label, , placeholder]) => {
    const text = name === "dead_letter_queue";
    inputs[name] = h("input", { name, type: text ? "text" : "number", min: text ? undefined : 0, step: text ? undefined : "any",
      value: given[name] ?? "", placeholder, disabled, autocomplete: "off" });
    return field(label, inputs[name]);
  });
  inputs.history = h("select", { name: "history", disabled }, ["off", "events", "full"].map((one) =>
    h("option", { value: one, selected: one === (given.history ?? "off") }, { off: "off", events: "events", full: "events and bodies" }[one])));
  return {
    node: h("div", { class: "fields" }, nodes, field("History", inputs.history)),
    changes() {
      const changes = {};
      for (const [name, input] of Object.entries(inputs)) {
        const text = input.value.trim();
        const value = name === "history" ? text : name === "dead_letter_queue" ? text || null : text === "" ? null : Number(text);
        if (value !== (given[name] ?? (name === "history" ? "off" : null))) changes[name] = value;
      }
      return changes;
    },
  };
}
