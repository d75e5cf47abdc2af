// Toasts, dialogs and confirmations.
import { h, field } from "./dom.js";

export function toast(text, bad = false) {
  const node = h("div", { class: bad ? "toast bad" : "toast" }, text);
  document.getElementById("toasts").append(node);
  setTimeout(() => node.remove(), bad ? 9000 : 4500);
}

/** Run a user action. An error is shown as a toast, and the result is null. */
export async function attempt(work, done) {
  try {
    const found = await work();
    if (done) toast(typeof done === "function" ? done(found) : done);
    return found ?? true;
  } catch (error) {
    if (error.status !== 401) toast(error.message, true);
    return null;
  }
}

/** A dialog with a form. If `submit` throws, the error is shown and the dialog stays open. Resolves to the result of
 * `submit`, or null if the dialog was cancelled. `submit` gets a function that shows how far it is, and a signal that
 * aborts when the dialog is closed, which ends work of many steps. */
export function ask({ title, body, submit, action = "Save", danger = false, cancel = "Cancel" }) {
  return new Promise((resolve) => {
    const error = h("p", { class: "error", role: "alert" });
    const progress = h("p", { class: "note", role: "status" });
    const closed = new AbortController();
    const submitButton = submit && h("button", { type: "submit", class: danger ? "main bad" : "main" }, action);
    const form = h("form", {}, h("h2", { id: "asked" }, title), body, progress, error,
      h("div", { class: "end" }, h("button", { type: "button", onclick: () => dialog.close() }, cancel), submitButton));
    const dialog = h("dialog", { "aria-labelledby": "asked" }, form);
    let result = null;
    let working = null; // what `submit` does
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      if (!submit) { dialog.close(); return; }
      submitButton.disabled = true;
      error.textContent = "";
      try {
        working = Promise.resolve(submit((text) => { progress.textContent = text; }, closed.signal));
        result = (await working) ?? true;
        dialog.close();
      } catch (problem) {
        working = null;
        progress.textContent = "";
        error.textContent = problem.message;
        submitButton.disabled = false;
      }
    });
    dialog.addEventListener("close", async () => {
      closed.abort();
      dialog.remove();
      if (working && !result) result = await working.then((done) => done ?? true, () => null);
      resolve(result);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** A confirmation before a destructive action; with `type`, that name must be typed. */
export function confirm({ title, text, action, type, submit, more }) {
  const typed = type && h("input", { autocomplete: "off", spellcheck: false, required: true });
  const body = [h("p", { class: "note" }, text), more, typed && field("Type the queue name to confirm", typed, true)];
  return ask({
    title, body, action, danger: true,
    submit: (...given) => {
      if (typed && typed.value !== type) throw new Error("Name doesn't match");
      return submit(...given);
    },
  });
}

/** All keyboard shortcuts; `pages` are those that open a page. */
export function help(pages) {
  const keys = [["/", "search or filter"], ...pages, ["j  k", "next and previous row"], ["Enter", "open the row"], ["s", "send a message (on a queue page)"], ["?", "this help"]];
  return ask({
    title: "Keyboard shortcuts", cancel: "Close",
    body: h("dl", { class: "facts" }, keys.map(([key, what]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, what)])),
  });
}
