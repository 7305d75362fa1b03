/* Checks a value against a shape that the server provides as data; see recording/schema.py. */

const LONGEST_NAME = 200, FAR_SCALAR = 1e15;

const number = (value) => value.toLocaleString("en-US");

const NAMES = {
  number: "a number",
  whole: "a whole number",
  text: "text",
  flag: "true or false",
  scalar: "a number, text, true, false or null",
  list: "a list",
  row: "a list of rows",
  object: "an object",
};

/* A description of a shape's values. */
function words({ type, least, most, values }) {
  if (type === "choice") return `one of ${values.join(", ")}`;
  const range = least === undefined ? "" : ` from ${number(least)} to ${number(most)}`;
  return NAMES[type] + range;
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const IS = {
  number: (value, { least, most }) => Number.isFinite(value) && value >= least && value <= most,
  whole: (value, { least, most }) => Number.isInteger(value) && value >= least && value <= most,
  text: (value, { most }) => typeof value === "string" && value.length <= most,
  flag: (value) => typeof value === "boolean",
  choice: (value, { values }) => values.includes(value),
  scalar: (value, { most }) => {
    if (typeof value === "string") return value.length <= most;
    return value === null || typeof value === "boolean" || (typeof value === "number" && Math.abs(value) <= FAR_SCALAR);
  },
  list: Array.isArray,
  row: Array.isArray,
  object: isObject,
  any: () => true,
};

/** The shape of frames whose rows have these columns; throws an Error if a column is missing. */
export function frameShape(columns, { frame, rows }) {
  const row = (kind) => rowShape(kind, columns[kind], rows[kind]), steps = row("steps");
  if (steps.columns.entries) steps.columns.entries = { type: "list", of: row("entries") };
  const fields = { steps: { type: "list", of: steps }, tokens: { type: "list", of: row("tokens") } };
  return { ...frame, fields: { ...frame.fields, ...fields } };
}

function rowShape(kind, names, known) {
  for (const [name, { optional }] of Object.entries(known)) {
    const times = names.filter((one) => one === name).length;
    if (times !== 1 && !(optional && times === 0)) throw new Error(`columns, ${kind} should have '${name}' once`);
  }
  const shape = (name) => (Object.hasOwn(known, name) ? known[name] : { type: "any" });
  return { type: "row", columns: Object.fromEntries(names.map((name) => [name, shape(name)])), missing: 0 };
}

/** Throws an Error that says where a value has another shape. */
export function check(value, shape, where) {
  if (value === null && shape.null) return;
  if (!IS[shape.type](value, shape)) throw new Error(`${where || "it"} should be ${words(shape)}`);
  if (shape.type === "list") { for (const one of value) check(one, shape.of, where); }
  else if (shape.type === "row") checkRow(value, shape, where);
  else if (shape.type === "object") checkFields(value, shape, where ? `${where}, ` : "");
}

function checkRow(row, { columns, missing }, where) {
  const names = Object.keys(columns);
  if (row.length > names.length || row.length < names.length - missing) {
    throw new Error(`${where} should have rows of ${names.length} columns`);
  }
  row.forEach((value, i) => check(value, columns[names[i]], `${where}, ${names[i]}`));
}

function checkFields(value, { fields, rest }, before) {
  for (const [name, field] of Object.entries(fields)) {
    if (Object.hasOwn(value, name)) check(value[name], field, before + name);
    else if (!field.optional) throw new Error(`${before}${name} is missing`);
  }
  if (!rest) return;
  for (const [name, one] of Object.entries(value)) {
    if (Object.hasOwn(fields, name)) continue;
    if (name.length > LONGEST_NAME) throw new Error(`${before}a name is longer than ${LONGEST_NAME} characters`);
    check(one, rest, before + name);
  }
}
