/* Calls the server's named endpoints, the same ones that programs call. Each call is an event of a Gradio component;
 * Gradio's client sends it, and shows the reason if the server refuses it. */
import { tab } from "./tab.js";

/** @typedef {{values: Record<string, any>, done: (result: any) => void}} Call */

/** @type {(events: Record<string, (data: object) => void>) => void} */
let connected = () => {};
const connection = new Promise((resolve) => (connected = resolve));
/** The call in progress, by endpoint. @type {Record<string, Call>} */
const calls = {};
/** The newest call, by endpoint. @type {Record<string, Promise<any>>} */
const lines = {};

/**
 * Call an endpoint after its earlier calls; resolves to its result, or to undefined if it was refused.
 * @param {string} endpoint its name
 * @param {Record<string, any>} [values] of its parameters; the tab's id is added, and all others keep their defaults
 */
export function call(endpoint, values = {}) {
  const line = (lines[endpoint] ?? Promise.resolve()).then(async () => {
    const events = await connection;
    return new Promise((done) => {
      calls[endpoint] = { values: { tab, ...values }, done };
      events[endpoint]({});
    });
  });
  lines[endpoint] = line;
  return line;
}

/** The arguments of an endpoint's call, for Gradio, which passes the defaults. */
export function argumentsOf(endpoint, parameters, ...defaults) {
  const { values } = calls[endpoint];
  return parameters.split(",").map((name, i) => values[name] ?? defaults[i]);
}

/** Called by Gradio when a call has ended; without a result if it was refused. */
export const ended = (endpoint, result) => calls[endpoint].done(result);

/** For a button: call an endpoint with the values of its inputs, under the names of parameters. */
export function press(endpoint, parameters, ...values) {
  const names = parameters ? parameters.split(",") : [];
  call(endpoint, Object.fromEntries(names.map((name, i) => [name, values[i]])));
}

/**
 * @param {HTMLElement} _element nothing to be seen
 * @param {Record<string, (data: object) => void>} events
 */
export const mount = (_element, events) => connected(events);
