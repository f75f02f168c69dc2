// What the page shows, described by plain objects and brought into the document by the least change.
//
// Elements that stay are kept, so focus, scrolling, opened details and typed text survive each refresh, and nothing
// piles up in memory. Text becomes text nodes only: whatever a publisher sent, none of it is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";
const known = new WeakMap(); // element → {key, on}

/** An element. `key` tells it from its neighbours, `on` has its listeners, `first` is set when it is made and left
 * alone afterwards (`open`, `value`); the rest are attributes. */
export function h(tag, props, ...children) {
  const { key, on, first, ...attributes } = props ?? {};
  return { tag, key, on: on ?? {}, first: first ?? {}, attributes, children: children.flat(Infinity).filter(isShown) };
}

function isShown(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

/** Makes the children of an element those that are described. */
export function patch(parent, ...children) {
  const focused = document.activeElement;
  update(parent, children.flat(Infinity).filter(isShown));
  if (focused !== document.activeElement && focused?.isConnected && parent.contains(focused)) {
    focused.focus({ preventScroll: true });
  }
}

function update(parent, wanted) {
  const keys = new Set(wanted.map((each) => each.key).filter((key) => key !== undefined));
  const kept = new Map();
  for (const node of [...parent.childNodes]) {
    const key = known.get(node)?.key;
    if (key === undefined) continue;
    if (keys.has(key)) kept.set(key, node);
    else node.remove();
  }
  let at = parent.firstChild;
  for (const each of wanted) {
    const node = reused(each, at, kept) ?? made(each, parent);
    if (node === at) at = at.nextSibling;
    else parent.insertBefore(node, at);
    fill(node, each);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function reused(each, at, kept) {
  if (typeof each !== "object") return at?.nodeType === Node.TEXT_NODE ? at : null;
  const node = each.key === undefined ? at : kept.get(each.key);
  const isSame = node?.nodeType === Node.ELEMENT_NODE && node.localName === each.tag && known.get(node)?.key === each.key;
  return isSame ? node : null;
}

function made(each, parent) {
  if (typeof each !== "object") return document.createTextNode("");
  const isSvg = each.tag === "svg" || parent.namespaceURI === SVG;
  const node = isSvg ? document.createElementNS(SVG, each.tag) : document.createElement(each.tag);
  known.set(node, { key: each.key, on: {} });
  for (const [name, value] of Object.entries(each.first)) node[name] = value;
  return node;
}

function fill(node, each) {
  if (typeof each !== "object") {
    if (node.data !== String(each)) node.data = each;
    return;
  }
  for (const [name, value] of Object.entries(each.attributes)) {
    if (value === null || value === undefined || value === false) node.removeAttribute(name);
    else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value === true ? "" : value);
  }
  for (const { name } of [...node.attributes]) {
    if (!(name in each.attributes) && !(name in each.first)) node.removeAttribute(name);
  }
  const { on } = known.get(node) ?? { on: {} };
  for (const name of Object.keys(on)) if (!(name in each.on)) node[`on${name}`] = null;
  for (const [name, listener] of Object.entries(each.on)) node[`on${name}`] = listener;
  if (known.has(node)) known.get(node).on = each.on;
  update(node, each.children);
}
