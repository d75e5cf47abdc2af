// API keys and their permissions. A secret is shown once.
import { api, key, live } from "./api.js";
import { clear, copy, empty, field, h, moment } from "./dom.js";
import { ask, attempt, confirm, toast } from "./dialogs.js";

export async function keysPage(main, { signal, identity }) {
  document.title = "Keys · MiniQ";
  if (identity && !identity.verbs.includes("admin")) {
    clear(main, h("div", { class: "head" }, h("h1", {}, "Keys")), h("div", { class: "card" }, empty("Not allowed", "Managing keys requires a key with the admin permission.")));
    return;
  }
  const { keys } = await api.keys();
  if (signal.aborted) return;
  const again = () => keysPage(main, { signal, identity }).catch(() => {});

  async function create() {
    const first = !keys.length;
    const name = h("input", { required: true, autocomplete: "off" });
    const allow = h("textarea", { rows: 3, value: first ? "*" : "read", spellcheck: false });
    const made = await ask({
      title: "New key", action: "Create",
      body: [first && h("p", { class: "note" }, "This is the first key: once it exists, calls without a key are refused, for good. Give it * or admin; otherwise keys can no longer be managed through the broker."),
        field("Name", name), field("Permissions, one per line", allow, true),
        h("p", { class: "note" }, "VERB or VERB:PATTERN, for example send:orders.* (verbs: send, receive, publish, read, manage, admin, *)")],
      submit: async () => {
        if (first) live.stop(); // from the first key on, the broker refuses the calls that this tab makes without one
        try {
          const made = await api.createKey({ name: name.value, allow: allow.value.split(/[\n,]/).map((one) => one.trim()).filter(Boolean) });
          if (first) key.set(made.secret);
          return made;
        } finally {
          if (first) live.start();
        }
      },
    });
    if (!made) return;
    const secret = h("input", { value: made.secret, readOnly: true, class: "mono", "aria-label": "Secret", onfocus: () => secret.select() });
    await ask({ title: `Key ${made.name}`, cancel: "Done", body: [h("p", { class: "note" }, "Copy the secret now. It won't be shown again."), secret,
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => copy(made.secret).then(() => toast("Copied.")) }, "Copy")),
      made.warnings?.map((text) => h("p", { class: "note bad" }, `Warning: ${text}.`)),
      first && h("p", { class: "note" }, "This tab now uses it.")] });
    if (first) location.reload(); else again();
  }

  async function revoke(one) {
    const last = keys.length === 1 ? " This is the last key: the broker then refuses every call. The way back is miniq keys create with --store, on its store." : "";
    if (await confirm({ title: `Revoke ${one.name}?`, text: `Clients that use it are rejected immediately.${last}`, action: "Revoke", submit: () => api.revokeKey(one.id) })) {
      toast(`Revoked ${one.name}.`);
      if (identity?.id === one.id) { key.set(null); location.reload(); } else again();
    }
  }

  const rows = keys.map((one) => h("tr", {},
    h("td", { class: "name" }, h("bdi", {}, one.name), " ", one.public && h("span", { class: "badge" }, "CURVE"), one.id === identity?.id && h("span", { class: "badge" }, "this tab")),
    h("td", { class: "mono spot", "data-label": "Permissions" }, one.allow.join(", ")),
    h("td", { "data-label": "Created" }, moment(one.created_at)), h("td", { class: "mono", "data-label": "ID" }, one.id),
    h("td", { class: "num bare" }, h("button", { type: "button", class: "bad", onclick: () => attempt(() => revoke(one)) }, "Revoke"))));
  clear(main,
    h("div", { class: "head" }, h("h1", {}, "Keys"), h("div", { class: "actions" }, h("button", { type: "button", class: "main", onclick: create }, "New key"))),
    h("div", { class: "card flush" }, keys.length
      ? h("div", { class: "scroll" }, h("table", { class: "cards" }, h("caption", { class: "visually-hidden" }, "API keys"), h("thead", {}, h("tr", {}, ["Name", "Permissions", "Created", "ID"].map((text) => h("th", { scope: "col" }, text)), h("th", { scope: "col" }, h("span", { class: "visually-hidden" }, "Revoke")))), h("tbody", {}, rows)))
      : empty("No keys", "Anyone who can reach this broker has full access. Without keys it listens on loopback only.")));
}
