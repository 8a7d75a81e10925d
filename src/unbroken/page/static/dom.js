// Small helpers for the document: nothing is written that has not changed, so that an update costs what it changes.

/** An element by its id; a page without it is broken, so that is an error. */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no element ${id}`);
  return found;
}

/** Make an element: `el("td", { class: "num" }, "12")`. Values that are null or false are left out. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  return node;
}

/** The shape of a state (`g-active`) or of a kind of sentence (`k-loss`). */
export function glyph(name) {
  const node = svg("svg", { class: "g", "aria-hidden": "true", focusable: "false" });
  node.append(svg("use", { href: `#${name}` }));
  return node;
}

export function setGlyph(node, name) {
  setAttribute(node.firstChild, "href", `#${name}`);
}

const texts = new WeakMap();

export function setText(node, text) {
  if (texts.get(node) === text) return;
  texts.set(node, text);
  node.textContent = text;
}

export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

export function setClass(node, text) {
  if (node.getAttribute("class") !== text) node.setAttribute("class", text);
}

export function setHidden(node, hidden) {
  if (node.hidden !== hidden) node.hidden = hidden;
}

/**
 * Make the children of `parent` those of `items`, in their order: known ones are kept and brought up to date, others
 * are made or removed. A child of the parent's own stays first, if it is its `keyedFirst`.
 */
export function keyed(parent, items, keyOf, make, update) {
  const known = (parent.keyedChildren ??= new Map());
  const wanted = new Map();
  for (const item of items) {
    const key = keyOf(item);
    const node = known.get(key) ?? make(item);
    wanted.set(key, node);
    update(node, item);
  }
  for (const [key, node] of known) if (!wanted.has(key)) node.remove();
  let place = parent.keyedFirst ? parent.keyedFirst.nextSibling : parent.firstChild;
  for (const node of wanted.values()) {
    if (node === place) place = place.nextSibling;
    else parent.insertBefore(node, place);
  }
  parent.keyedChildren = wanted;
}
