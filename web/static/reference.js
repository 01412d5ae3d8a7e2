// Shows the OpenAPI document and the schema files that it refers to. Every text is put in as
// text, never as markup, and nothing is asked for outside this Host.

const DOCUMENT = new URL("/openapi.json", location.href);
const FOLDER = new URL("/schemas/", location.href);
const METHODS = ["get", "head", "post", "delete", "options"];
const BOUNDS = {
  minimum: "at least", minLength: "characters, at least", maxLength: "characters, at most",
  minItems: "elements, at least", maxProperties: "members, at most", pattern: "pattern",
};

// --- elements ------------------------------------------------------------------------------------

/** Return an element with attributes and children; strings become text. */
function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) made.setAttribute(key, value);
  made.append(...children.flat(Infinity).filter((child) => child !== null));
  return made;
}

const link = (id, text) => element("a", { href: `#${encodeURIComponent(id)}` }, text);
const code = (text) => element("code", null, text);
const joined = (by, parts) => parts.flatMap((part, index) => [index ? by : "", part]);

/** Return prose with what stands between backticks as code. */
const prose = (text) => text.split("`").map((part, index) => (index % 2 ? code(part) : part));

const paragraphs = (text) =>
  (text ?? "").split("\n\n").filter(Boolean).map((part) => element("p", null, prose(part)));

/** Return a table that scrolls by itself where it is too wide. */
function table(label, columns, rows) {
  if (rows.length === 0) return null;
  const head = columns.map((column) => element("th", { scope: "col" }, column));
  const body = rows.map(([first, ...others]) =>
    element("tr", null, element("th", { scope: "row" }, first),
      others.map((cell) => element("td", null, cell))));
  return element("div", { class: "table", role: "region", "aria-label": label, tabindex: "0" },
    element("table", null, element("thead", null, element("tr", null, head)),
      element("tbody", null, body)));
}

/** Return a list, null where there is nothing in it. */
const list = (items) =>
  items.length ? element("ul", null, items.map((item) => element("li", null, item))) : null;

// --- references ----------------------------------------------------------------------------------

/** Return what a JSON Pointer leads to. */
function pointed(root, pointer) {
  const tokens = decodeURIComponent(pointer).split("/").slice(1);
  return tokens.reduce((at, token) => at[token.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/** Yield every reference within a value that leads out of its file, as an address. */
function* references(value, base) {
  if (typeof value !== "object" || value === null) return;
  if (typeof value.$ref === "string" && !value.$ref.startsWith("#")) yield new URL(value.$ref, base);
  for (const member of Object.values(value)) yield* references(member, base);
}

async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address.pathname} was answered ${answer.status}`);
  return answer.json();
}

/** Return the files that a document refers to, directly or through others, by address. */
async function gathered(root, base) {
  const files = new Map();
  const load = async (address) => {
    const file = fileOf(address.href);
    if (files.has(file)) return;
    files.set(file, null); // taken: it is asked for once
    files.set(file, await fetched(new URL(file)));
    await Promise.all([...references(files.get(file), file)].map(load));
  };
  await Promise.all([...references(root, base)].map(load));
  const depth = ([address]) => address.split("/").length;
  return new Map([...files].sort().sort((one, other) => depth(one) - depth(other)));
}

const nameOf = (address) => address.replace(FOLDER.href, "");
const fileOf = (address) => address.replace(/#.*/, "");

// --- schemas -------------------------------------------------------------------------------------

/** Return a link to where the schema is shown that a reference leads to. */
function schemaLink(reference, base, files) {
  const { href, hash } = new URL(reference, base);
  const target = pointed(files.get(fileOf(href)), hash.slice(1));
  return link(nameOf(href), target.title);
}

/** Return what kind of value a schema wants, in a few words. */
function kind(schema, base, files) {
  if (schema.$ref) return [schemaLink(schema.$ref, base, files)];
  if ("const" in schema) return [code(JSON.stringify(schema.const))];
  if (schema.enum) return joined(", ", schema.enum.map((one) => code(JSON.stringify(one))));
  if (schema.type === "array" && schema.items) return ["array of ", kind(schema.items, base, files)];
  return [[schema.type ?? "any value"].flat().join(" or ")];
}

/** Return the bounds of a schema as a list, null where it has none. */
function bounds(schema) {
  const told = Object.entries(BOUNDS).filter(([key]) => key in schema)
    .map(([key, words]) => [`${words} `, code(String(schema[key]))]);
  if (schema.not?.pattern) told.push(["no match of ", code(schema.not.pattern)]);
  return list(told);
}

/** Return the rows of an object's members, those of objects within it below their own. */
function memberRows(schema, base, files, prefix = "") {
  return Object.entries(schema.properties ?? {}).flatMap(([name, member]) => {
    const needed = schema.required?.includes(name) ? "required" : "optional";
    const row = [
      [code(prefix + name), element("span", { class: "needed" }, needed)],
      kind(member, base, files), [prose(member.description ?? ""), bounds(member)],
    ];
    return [row, ...memberRows(member, base, files, `${prefix}${name}.`)];
  });
}

/** Return one alternative in words: which members it has, which not, and what they are. */
function alternative(schema, base, files) {
  if (schema.$ref) return schemaLink(schema.$ref, base, files);
  return joined("; ", Object.entries(schema.properties ?? {}).map(([name, member]) => {
    if (member.not) return ["without ", code(name)];
    return [code(name), Object.keys(member).length ? [": ", kind(member, base, files)] : ""];
  }));
}

function alternatives(schema, base, files, level) {
  const among = schema.oneOf ?? (schema.allOf ?? []).map((part) => part.then);
  if (among.length === 0) return [];
  const items = among.map((part) => alternative(part, base, files));
  return [element(level, null, "Exactly one of"), list(items)];
}

/** Return a schema's section: its members, its alternatives, and the schemas within it. */
function schemaSection(schema, address, files, level = 3) {
  const id = nameOf(address);
  const deeper = `h${level + 1}`;
  return [
    element(`h${level}`, { id }, schema.title),
    level === 3 ? element("p", null, element("a", { href: address }, code(id))) : null,
    paragraphs(schema.description),
    bounds(schema),
    table(`Members of ${id}`, ["Member", "Value", "Meaning"], memberRows(schema, address, files)),
    alternatives(schema, address, files, deeper),
    Object.entries(schema.properties ?? {}).flatMap(([name, member]) =>
      member.oneOf ? [element("p", null, "In ", code(name), ":"),
        alternatives(member, address, files, deeper)] : []),
    Object.entries(schema.$defs ?? {}).map(([name, part]) =>
      schemaSection(part, `${fileOf(address)}#/$defs/${name}`, files, level + 1)),
  ];
}

// --- operations ----------------------------------------------------------------------------------

/** Return a part of the document, or what it refers to within it. */
const within = (root, part) =>
  part.$ref?.startsWith("#") ? pointed(root, part.$ref.slice(1)) : part;

/** Return the problem codes of a response's schema, or what they look like. */
function problemCodes(schema) {
  const asked = schema.allOf?.[1]?.properties?.code ?? {};
  const codes = joined(", ", (asked.enum ?? asked.examples ?? []).map(code));
  return asked.enum ? codes : [codes, ", and others"];
}

/** Return the headers that every answer carries. */
function sharedHeaders(root) {
  const [first, ...others] = Object.values(root.components.responses);
  return Object.keys(first.headers)
    .filter((name) => others.every((response) => name in (response.headers ?? {})));
}

const headerList = (root, response, names) => list(names.map((name) =>
  [code(name), " ", prose(within(root, response.headers[name]).description)]));

function responseRow(root, files, status, described) {
  const response = within(root, described);
  const bodies = Object.entries(response.content ?? {}).map(([type, { schema }]) =>
    [code(type), " ", schema.allOf ? problemCodes(schema) : kind(schema, DOCUMENT, files)]);
  const shared = sharedHeaders(root);
  const own = Object.keys(response.headers ?? {}).filter((name) => !shared.includes(name));
  return [code(status), prose(response.description), list(bodies) ?? "none",
    headerList(root, response, own) ?? "none"];
}

function operationSection(root, files, title, operation) {
  const ofPath = root.paths[title.split(" ")[1]].parameters;
  const parameters = [...(ofPath ?? []), ...(operation.parameters ?? [])]
    .map((parameter) => within(root, parameter));
  const body = operation.requestBody;
  return [
    element("h3", { id: operation.operationId }, code(title)),
    element("p", null, prose(operation.summary)),
    paragraphs(operation.description),
    table(`Parameters of ${title}`, ["Parameter", "Value", "Meaning"], parameters.map((one) => [
      [code(one.name), element("span", { class: "needed" },
        `${one.in}, ${one.required ? "required" : "optional"}`)],
      kind(one.schema, DOCUMENT, files), prose(one.description),
    ])),
    body ? [element("h4", null, "Body"), paragraphs(body.description),
      list(Object.entries(body.content).map(([type, one]) =>
        [code(type), " ", kind(one.schema, DOCUMENT, files)]))] : null,
    table(`Answers to ${title}`, ["Status", "Meaning", "Body", "Headers of its own"],
      Object.entries(operation.responses).map((entry) => responseRow(root, files, ...entry))),
  ];
}

/** Return what HTTP gives every route, in one table: there is nothing more to say of each. */
const methodsTable = (operations) =>
  table("Methods", ["Operation", "Meaning", "Statuses"],
    operations.map(([title, { operationId, summary, responses }]) =>
      [element("code", { id: operationId }, title), summary, Object.keys(responses).join(", ")]));

// --- the page ------------------------------------------------------------------------------------

function contents(title, entries, isOpen) {
  const links = entries.map(([id, text]) => link(id, text));
  return element("details", isOpen ? { open: "" } : null, element("summary", null, title), list(links));
}

function show(root, files) {
  const main = document.getElementById("content");
  const nav = document.getElementById("contents");
  const put = (...parts) => main.append(...parts.flat(Infinity).filter((part) => part !== null));
  const isWide = matchMedia("(min-width: 62rem)").matches;
  put(paragraphs(root.info.description), element("p", null, "Every answer carries:"),
    headerList(root, root.components.responses.Forbidden, sharedHeaders(root)));
  const all = Object.values(root.paths).map(Object.entries).flatMap((item, index) =>
    item.filter(([method]) => METHODS.includes(method)).map(([method, operation]) =>
      [`${method.toUpperCase()} ${Object.keys(root.paths)[index]}`, operation]));
  for (const { name, description } of root.tags) {
    const tagged = all.filter(([, operation]) => operation.tags.includes(name));
    const isOfHttp = name === "methods";
    put(element("h2", null, name), paragraphs(description), isOfHttp ? methodsTable(tagged)
      : tagged.map(([title, operation]) => operationSection(root, files, title, operation)));
    nav.append(contents(name, tagged.map(([title, { operationId }]) => [operationId, title]),
      isWide && !isOfHttp));
  }
  const schemas = [...files].filter(([address]) => address.startsWith(FOLDER.href));
  put(element("h2", null, "schemas"),
    schemas.map(([address, schema]) => schemaSection(schema, address, files)));
  nav.append(contents("schemas", schemas.map(([at, { title }]) => [nameOf(at), title]), isWide));
}

const status = document.getElementById("status");
try {
  const root = await fetched(DOCUMENT);
  show(root, await gathered(root, DOCUMENT));
  status.textContent = "";
  document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView();
} catch (error) {
  status.textContent = `Could not be shown: ${error.message}`;
}
