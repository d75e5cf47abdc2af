// The shell: routing, sign-in, connection state, theme and keyboard shortcuts.
import { api, key, live, whenUnauthorized } from "./api.js";
import { clear, empty, field, h, say } from "./dom.js";
import { ask, help, toast } from "./dialogs.js";
import { overview } from "./overview.js";

const main = document.getElementById("main");
/** A page whose module is loaded when it is opened. */
const loaded = (file, name) => async (...given) => (await import(`./${file}.js`))[name](...given);
// The menu: title, address, the key that opens it after "g", and the pages under it by their addresses.
const MENU = [
  ["Queues", "#/", "q", [[/^\/?$/, overview], [/^\/q\/([^/]+)$/, loaded("queue", "queuePage")], [/^\/q\/([^/]+)\/m\/([^/]+)$/, loaded("message", "messagePage")]]],
  ["Dead letters", "#/dead", "d", [[/^\/dead(?:\/([^/]+))?$/, loaded("dead", "deadPage")]]],
  ["Topics", "#/topics", "t", [[/^\/topics(?:\/([^/]+))?$/, loaded("topics", "topicsPage")]]],
  ["Schedules", "#/schedules", "s", [[/^\/schedules(?:\/([^/]+))?$/, loaded("schedules", "schedulesPage")]]],
  ["Claims", "#/claims", "c", [[/^\/claims$/, loaded("claims", "claimsPage")]]],
  ["History", "#/history", "h", [[/^\/history$/, loaded("history", "historyPage")]]],
  ["Keys", "#/keys", "k", [[/^\/keys$/, loaded("keys", "keysPage")]]],
];
const ROUTES = MENU.flatMap(([, href, , pages]) => pages.map(([pattern, page]) => [pattern, page, href]));
const [FIRST, REST] = [/^\S+/, / .*/]; // words of a title: phones show the first one
clear(document.querySelector("nav"), MENU.map(([title, href]) => h("a", { href }, title.match(FIRST)[0], h("span", { class: "rest" }, title.match(REST)?.[0] ?? ""))));

let current = null; // AbortController of the page that is shown
let identity = null;

/** Show the page named by the URL. A page gets a container, its arguments and a signal that aborts when it is left. */
async function show() {
  current?.abort();
  current = new AbortController();
  const { signal } = current;
  const [path, search] = location.hash.replace(/^#/, "").split("?");
  const found = ROUTES.map(([pattern, ...route]) => [path.match(pattern), ...route]).find(([match]) => match);
  for (const link of document.querySelectorAll("nav a")) {
    if (found && link.getAttribute("href") === found[2]) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  if (!found) { clear(main, empty("Page not found", "Pick a page from the menu above.")); return; }
  const [match, page] = found;
  try {
    const args = match.slice(1).map((part) => (part === undefined ? undefined : decodeURIComponent(part)));
    await page(main, { args, query: new URLSearchParams(search ?? ""), signal, identity });
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    if (error.status !== 401) clear(main, empty("Can't load this page", error.message));
  }
}

window.addEventListener("hashchange", async () => {
  await show();
  if (main.contains(document.activeElement) && document.activeElement !== main) return; // the page is in use while its last part loads
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});

// Sign-in

async function start() {
  try {
    identity = await api.whoami();
  } catch (error) {
    if (error.status === 401) return;
    identity = null;
  }
  const place = document.getElementById("who");
  clear(place, identity && !identity.open && h("button", { class: "plain", type: "button", title: "What this key may do", onclick: showRights }, h("span", {}, `key ${identity.name}`, rights(identity.allow))),
    key.get() && h("button", { class: "plain", type: "button", onclick: () => { key.set(null); location.reload(); } }, "Sign out"));
  live.start();
  await show();
}

/** What a key may do on some queue, in a few words. */
function rights(allow) {
  const verbs = [...new Set(allow.map((scope) => scope.split(":")[0]))];
  if (verbs.includes("*")) return "";
  if (!verbs.includes("read")) verbs.push("not read");
  return ` · ${verbs.join() === "read" ? "read-only" : verbs.join(", ")}`;
}

const MEANINGS = { send: "send messages", receive: "receive, ack, fail; claims", publish: "publish to topics", read: "look at messages and numbers", manage: "create, change, purge, redrive and delete", admin: "manage keys, make backups", "*": "everything" };

/** What the key of this tab allows, scope by scope. */
const showRights = () => ask({ title: `Key ${identity.name}`, cancel: "Close", body: h("dl", { class: "facts" }, identity.allow.map((scope) => {
  const [verb, on] = scope.split(":");
  return [h("dt", {}, h("code", {}, scope)), h("dd", {}, `${MEANINGS[verb] ?? verb}${on ? `, on ${on}` : verb === "admin" ? "" : ", on every queue"}`)];
})) });

let signingIn = false;
whenUnauthorized(async (problem) => {
  if (signingIn) return;
  signingIn = true;
  live.stop();
  clear(document.getElementById("who"));
  const input = h("input", { type: "password", autocomplete: "off", placeholder: "mq_…", required: true });
  const wrong = key.get() && h("p", { class: "error" }, problem.detail);
  const given = await ask({
    title: "API key required",
    body: [h("p", { class: "note" }, "The key is kept in this tab only and is forgotten when the tab is closed."), wrong, field("API key", input, true)],
    action: "Sign in",
    submit: () => {
      if (!/^[!-~]+$/.test(input.value.trim())) throw new Error("Invalid key: use printable ASCII characters without spaces.");
      key.set(input.value.trim());
    },
  });
  signingIn = false;
  if (given) start();
  else clear(main, empty("Not signed in", "Create a key with `miniq keys create NAME --allow '*'`, then sign in."),
    h("div", { class: "more" }, h("button", { class: "main", type: "button", onclick: start }, "Sign in")));
});

// Connection state

live.addEventListener("state", ({ detail: { state, before } }) => {
  const place = document.getElementById("live");
  place.dataset.state = state;
  say(place, state);
  const banner = document.getElementById("offline");
  banner.hidden = state !== "unreachable";
  if (state === "unreachable") {
    say(banner, `Can't reach the broker at ${location.host}. Is it running (miniq serve)? The console reconnects automatically.`);
  } else if (before === "unreachable") {
    toast("Reconnected.");
    if (!document.querySelector("dialog[open]")) start();
  }
});

// Theme

const themes = ["auto", "light", "dark"];
const paint = () => {
  const theme = localStorage.getItem("miniq.theme") ?? "auto";
  if (theme === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = theme;
  return theme;
};
document.getElementById("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(paint()) + 1) % themes.length];
  localStorage.setItem("miniq.theme", next);
  paint();
  toast(`Theme: ${next === "auto" ? "system" : next}`);
});
paint();

// Keyboard shortcuts

const showHelp = () => help(MENU.map(([title, , key]) => [`g ${key}`, title.toLowerCase()]));
document.getElementById("help").addEventListener("click", showHelp);
const shortcuts = Object.fromEntries(MENU.map(([, href, key]) => [key, href]));
let prefixedAt = 0; // when "g" was pressed
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest("input, textarea, select");
  if (typing) { if (event.key === "Escape") typing.blur(); return; }
  if (Date.now() - prefixedAt < 1200 && shortcuts[event.key]) { location.hash = shortcuts[event.key]; prefixedAt = 0; event.preventDefault(); return; }
  if (event.key === "g") prefixedAt = Date.now();
  else if (event.key === "?") showHelp();
  else if (event.key === "/") { const search = main.querySelector("input.search"); if (search) { search.focus(); event.preventDefault(); } }
  else if (event.key === "s") { main.querySelector("[data-key=send]")?.click(); event.preventDefault(); } // else the dialog gets the letter
  else if (event.key === "j" || event.key === "k") moveSelection(event.key === "j" ? 1 : -1);
  else if (event.key === "Enter" && event.target === document.body) main.querySelector("tr.at a")?.click();
});

function moveSelection(step) {
  const rows = [...main.querySelectorAll("tbody tr")].filter((row) => row.querySelector("a"));
  if (!rows.length) return;
  const at = rows.findIndex((row) => row.classList.contains("at"));
  const next = rows[Math.max(0, Math.min(rows.length - 1, at + step))];
  rows[at]?.classList.remove("at");
  next.classList.add("at");
  next.querySelector("a").focus();
  next.scrollIntoView({ block: "nearest" });
}

start();
