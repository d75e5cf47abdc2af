// API keys: who may do what. A secret is shown once.
import { api, key } from "./api.js";
import { clear, empty, field, h, moment } from "./dom.js";
import { ask, attempt, confirm, toast } from "./talk.js";

export async function keysPage(main, { signal, who }) {
  document.title = "Keys · MiniQ";
  if (who && !who.verbs.includes("admin")) {
    clear(main, h("div", { class: "head" }, h("h1", {}, "Keys")), h("div", { class: "card" }, empty("This key may not see others", "Making and revoking keys needs a key with the right admin.")));
    return;
  }
  const { keys } = await api.keys();
  if (signal.aborted) return;
  const again = () => keysPage(main, { signal, who }).catch(() => {});

  async function create() {
    const name = h("input", { required: true, autocomplete: "off" });
    const allow = h("textarea", { rows: 3, value: keys.length ? "read" : "*", spellcheck: false });
    const made = await ask({
      title: "New key", action: "Create",
      body: [!keys.length && h("p", { class: "note" }, "This is the first key: from then on every call needs one. Let it allow *, or nobody can make another."),
        field("Name, for people", name), field("Allows, one a line", allow, true),
        h("p", { class: "note" }, "VERB or VERB:PATTERN, such as send:orders.* — verbs are send, receive, read, manage, admin and *.")],
      submit: () => api.createKey({ name: name.value, allow: allow.value.split(/[\n,]/).map((one) => one.trim()).filter(Boolean) }),
    });
    if (!made) return;
    const secret = h("input", { value: made.secret, readOnly: true, class: "mono", "aria-label": "Secret", onfocus: () => secret.select() });
    const first = !keys.length;
    if (first) key.set(made.secret);
    await ask({ title: `Key ${made.name}`, cancel: "Done", body: [h("p", { class: "note" }, "This is its secret. It is shown only now."), secret,
      h("div", { class: "row" }, h("button", { type: "button", onclick: () => navigator.clipboard.writeText(made.secret).then(() => toast("Copied.")) }, "Copy")),
      first && h("p", { class: "note" }, "This tab uses it from now on.")] });
    if (first) location.reload(); else again();
  }

  async function revoke(one) {
    const last = keys.length === 1 ? " It is the last one: everybody who can reach the broker may then do everything." : "";
    if (await confirm({ title: `Revoke ${one.name}?`, text: `Whoever uses it is refused from now on.${last}`, action: "Revoke", submit: () => api.revokeKey(one.id) })) {
      toast(`Revoked ${one.name}.`);
      if (who?.id === one.id) { key.set(null); location.reload(); } else again();
    }
  }

  const rows = keys.map((one) => h("tr", {},
    h("td", { class: "name" }, h("bdi", {}, one.name), " ", one.public && h("span", { class: "badge" }, "CURVE"), one.id === who?.id && h("span", { class: "badge" }, "this tab")),
    h("td", { class: "mono spot", "data-label": "Allows" }, one.allow.join(", ")),
    h("td", { "data-label": "Made" }, moment(one.created_at)), h("td", { class: "mono", "data-label": "Id" }, one.id),
    h("td", { class: "num bare" }, h("button", { type: "button", class: "bad", onclick: () => attempt(() => revoke(one)) }, "Revoke"))));
  clear(main,
    h("div", { class: "head" }, h("h1", {}, "Keys"), h("div", { class: "actions" }, h("button", { type: "button", class: "main", onclick: create }, "New key"))),
    h("div", { class: "card flush" }, keys.length
      ? h("div", { class: "scroll" }, h("table", { class: "cards" }, h("caption", { class: "hush" }, "API keys"), h("thead", {}, h("tr", {}, ["Name", "Allows", "Made", "Id"].map((text) => h("th", { scope: "col" }, text)), h("th", { scope: "col" }, h("span", { class: "hush" }, "Revoke")))), h("tbody", {}, rows)))
      : empty("No keys", "Everybody who can reach this broker may do everything, which is fine on your own machine. It listens on loopback only until there is a key.")));
}
