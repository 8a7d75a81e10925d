// What can be done to the flow: each action is confirmed first, and sent with the flow's token, which only this page's
// memory keeps.

import { byId, el, setClass, setHidden, setText } from "./dom.js";

const TOAST_MS = 6000;
const ANSWER_MS = 30_000; // The server itself answers within 15 s, whatever becomes of the action.

const WORDS = {
  drain: { label: "Drain", title: (t) => `Drain ${t.node}?`, text: "Its replicas are built on other nodes first. When nothing depends on it any more, it can be stopped without anybody noticing.", yes: "Drain" },
  undrain: { label: "Use again", title: (t) => `Use ${t.node} again?`, text: "It may be given replicas again.", yes: "Use again" },
  reinit: { label: "Build again", title: (t) => `Build ${t.replica} again?`, text: "It is thrown away and built from the state of a peer, which goes on meanwhile. Until it has caught up, its shard has a replica less.", yes: "Build again" },
  kill: { label: "Kill", title: (t) => `Kill ${t.node}?`, text: "Its process is ended with kill -9, as a crash would. The flow has to go on without it.", yes: "Kill", danger: true },
  freeze: { label: "Freeze", title: (t) => `Freeze ${t.node}?`, text: "Its processes are stopped where they are: connections stay, and nothing answers until you let it go on.", yes: "Freeze", danger: true },
  thaw: { label: "Let go on", title: (t) => `Let ${t.node} go on?`, text: "Its processes go on where they were stopped.", yes: "Let go on" },
};

export class Actions {
  constructor() {
    this.token = "";
    this.asked = null;
    this.hint = "";
    this.dialog = byId("confirm");
    byId("confirm-no").addEventListener("click", () => this.dialog.close());
    byId("confirm-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    this.dialog.addEventListener("close", () => {
      if (this.dialog.open) return; // The event comes after the dialog has closed: it may have been opened again.
      this.clear();
      this.opener?.focus?.();
    });
  }

  show({ page }) {
    this.hint = page?.token_hint ?? "";
  }

  /** What can be done to a node as it is. */
  forNode(node, offered) {
    const names = [];
    const isAlive = node.look !== "dead";
    if (isAlive) names.push(node.draining ? "undrain" : "drain");
    if (node.local && isAlive) names.push(node.frozen ? "thaw" : "freeze", "kill");
    return names.filter((name) => offered.includes(name)).map((name) => ({ name, target: { node: node.node } }));
  }

  forReplica(replica, offered) {
    if (!offered.includes("reinit") || replica.look === "dead") return [];
    return [{ name: "reinit", target: { node: replica.node, shard: replica.shard, replica: replica.replica } }];
  }

  button({ name, target }) {
    const words = WORDS[name];
    const label = `${words.label}${name === "reinit" ? "" : ` ${target.node}`}`;
    const button = el("button", { type: "button", class: words.danger ? "act danger" : "act", "aria-label": label, "data-action": name }, words.label);
    button.addEventListener("click", () => this.ask(name, target, button));
    return button;
  }

  ask(name, target, opener) {
    const words = WORDS[name];
    this.clear();
    this.asked = { name, target };
    this.opener = opener;
    setText(byId("confirm-title"), words.title(target));
    setText(byId("confirm-text"), words.text);
    setText(byId("confirm-yes"), words.yes);
    setClass(byId("confirm-yes"), words.danger ? "strong danger" : "strong");
    setText(byId("confirm-hint"), this.hint);
    this.refuse("");
    byId("confirm-yes").disabled = false;
    setHidden(byId("confirm-token-label"), Boolean(this.token));
    this.dialog.showModal();
    (this.token ? byId("confirm-no") : byId("confirm-token")).focus();
  }

  async send() {
    const { asked } = this;
    if (!asked) return;
    const { name, target } = asked;
    const token = this.token || byId("confirm-token").value.trim();
    if (!token) {
      this.refuse("The token is needed.");
      return;
    }
    const button = byId("confirm-yes");
    button.disabled = true;
    // An answer may come when the dialog was closed, or asks something else by now.
    const refuse = (text) => (this.asked === asked ? this.refuse(text) : this.say(text));
    try {
      const answer = await fetch(`/api/actions/${name}`, {
        method: "POST",
        headers: { "Content-Type": "application/json", "X-Unbroken-Token": token },
        body: JSON.stringify({ node: target.node, shard: target.shard ?? "" }),
        signal: AbortSignal.timeout(ANSWER_MS),
      });
      const told = await answer.json();
      if (answer.ok) {
        this.token = token;
        if (this.asked === asked) {
          this.clear();
          this.dialog.close();
        }
        this.say(told.said);
      } else {
        if (answer.status === 401) this.forgetToken();
        refuse(told.error);
      }
    } catch {
      refuse("The page's server does not answer.");
    } finally {
      if (this.asked === asked) button.disabled = false;
    }
  }

  /** Forget what was asked and typed. */
  clear() {
    byId("confirm-token").value = "";
    this.asked = null;
  }

  forgetToken() {
    this.token = "";
    setHidden(byId("confirm-token-label"), false);
    byId("confirm-token").focus();
  }

  refuse(text) {
    setText(byId("confirm-error"), text);
  }

  say(text) {
    setText(byId("toast"), text);
    clearTimeout(this.fading);
    this.fading = setTimeout(() => setText(byId("toast"), ""), TOAST_MS);
  }
}
