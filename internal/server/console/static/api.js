// Requests to the node that serves the page. The console uses only the public HTTP API (docs/openapi.yaml).
import { useEffect, useRef, useState } from "./vendor/hooks.mjs";

// The API is beside /console/, also behind a proxy that adds a prefix to both.
const root = new URL("../", location.href.split("#")[0]);
const timeout = 5000; // ms; a node that hangs must not stop the page
const changeTimeout = 30000; // changes wait for all leaders
const period = 2000; // ms between two looks

export class Refused extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

const badName = (of) =>
	`This cannot be the name of a ${of}: 1 to 64 letters, digits, dots, underscores and hyphens can.`;

const says = {
	AUTH_FIRST: "Nobody is logged in: log in with a token.",
	AUTH_FAILED: "The node does not know this token (any more): log in again.",
	UNAUTHORIZED: "This token may not do that: it lacks the permission.",
	NOT_FOUND: "This node is too old for that: its version does not have it.",
	TOPIC_NOT_FOUND: "There is no such topic (any more).",
	CHANNEL_NOT_FOUND: "There is no such channel (any more).",
	INVALID_TOPIC: badName("topic"),
	INVALID_ARG_CHANNEL: badName("channel"),
	INVALID_PARTITIONS: "This cannot be the number of partitions: a topic has from 1 to 65,536.",
	INVALID_DEFER: "The node takes no such delay: it is longer than its setting max-defer, or below 0.",
	MSG_TOO_BIG: "The message is larger than the node takes (its setting is max-message-bytes).",
	MSG_EMPTY: "A message has at least one byte.",
};

// path returns a path with a query; parameters that are undefined are left out.
export function path(name, query = {}) {
	const q = new URLSearchParams(Object.entries(query).filter(([, v]) => v !== undefined && v !== ""));
	return q.size ? `${name}?${q}` : name;
}

// doubts are called when what is known of the client may be wrong: the node does not know the token (any more), or
// refuses a change that the page has offered.
export const doubts = new Set();
export const doubt = () => doubts.forEach((f) => f());

async function request(method, where, body, wait, signal) {
	const stop = new AbortController();
	const timer = setTimeout(() => stop.abort(), wait);
	const end = () => stop.abort();
	signal?.addEventListener("abort", end);
	const isText = typeof body === "string" || body instanceof Uint8Array;
	try {
		const reply = await fetch(new URL(where.replace(/^\//, ""), root), {
			method, signal: stop.signal, credentials: "same-origin", cache: "no-store",
			body: body === undefined || isText ? body : JSON.stringify(body),
		});
		const text = await reply.text();
		let json;
		try {
			json = JSON.parse(text);
		} catch {
			json = undefined;
		}
		// /health answers 503 with a verdict when something is wrong: that is an answer.
		if (!reply.ok && !(json && "healthy" in json)) {
			const message = json?.message ?? `the node answers ${reply.status}`;
			if ((reply.status === 401 || (reply.status === 403 && method !== "GET")) && where !== "/session") doubt();
			throw new Refused(reply.status, says[message] ?? message);
		}
		return json ?? text;
	} catch (e) {
		if (e instanceof Refused) throw e;
		throw new Error(stop.signal.aborted
			? `the node did not answer within ${wait / 1000} s` : "the node cannot be reached");
	} finally {
		clearTimeout(timer);
		signal?.removeEventListener("abort", end); // the signal lives as long as the page
	}
}

export const get = (where, signal) => request("GET", where, undefined, timeout, signal);

// tracked sends what a person asked for. While it is under way, the page says so, and the same request again waits for
// the same answer: a second click on a slow day does nothing twice.
const underWay = new Map();
export const waiters = new Set(); // functions that get how many requests are under way
function tracked(method, where, body, wait) {
	const key = [method, where, typeof body === "string" ? body : JSON.stringify(body)].join();
	if (!underWay.has(key)) {
		underWay.set(key, request(method, where, body, wait).finally(() => {
			underWay.delete(key);
			waiters.forEach((f) => f(underWay.size));
		}));
		waiters.forEach((f) => f(underWay.size));
	}
	return underWay.get(key);
}

export const send = (method, where, body) => tracked(method, where, body, changeTimeout);
export const fetchNow = (where) => tracked("GET", where, undefined, timeout);
export const post = (where, body) => send("POST", where, body);

// links has, for each thing that is looked at, when the node last answered. The line at the top shows the worst.
export const links = new Map();

// useLook asks for a path each 2 s while the page is seen, and returns {data, error, at}: the last answer, why there is
// none now, and when it came (ms of performance.now). Data stays when the node is silent; at says how old it is.
export function useLook(where, every = period) {
	const [look, set] = useState({});
	const again = useRef(() => {});
	useEffect(() => {
		set({});
		if (!where) return;
		let ended = false, timer;
		const stop = new AbortController();
		const once = async () => {
			clearTimeout(timer);
			if (!document.hidden) {
				try {
					const data = await get(where, stop.signal);
					if (ended) return;
					links.set(where, { at: performance.now() });
					set({ data, at: performance.now() });
				} catch (error) {
					if (ended) return;
					// A refusal is an answer: the node is there.
					const old = links.get(where);
					links.set(where, error instanceof Refused ? { at: performance.now() } : { at: old?.at, error,
						since: old?.since ?? performance.now() });
					set((had) => (error instanceof Refused ? { error } : { ...had, error }));
				}
			}
			timer = setTimeout(once, every);
		};
		again.current = once;
		links.set(where, { at: undefined, since: performance.now() });
		once();
		const seen = () => document.hidden || once();
		document.addEventListener("visibilitychange", seen);
		return () => {
			ended = true;
			stop.abort();
			clearTimeout(timer);
			links.delete(where);
			document.removeEventListener("visibilitychange", seen);
		};
	}, [where, every]);
	return { ...look, again: () => again.current() };
}

// useNow draws anew each second, for ages.
export function useNow() {
	const [now, set] = useState(performance.now());
	useEffect(() => {
		const timer = setInterval(() => set(performance.now()), 1000);
		return () => clearInterval(timer);
	}, []);
	return now;
}

const staleAfter = 6000; // ms without an answer, after which nothing on the page counts as of now

// freshness returns for how long (ms) the page's data lacks an answer, and whether that is too long.
export function freshness(now) {
	let age = 0, error, waits = false;
	for (const l of links.values()) {
		const a = now - (l.at ?? l.since);
		if (l.error && a >= age) error = l.error;
		age = Math.max(age, a);
		waits ||= l.at === undefined && a > 1000; // for a first answer
	}
	return { age: Math.max(0, age), stale: age > staleAfter, error, waits };
}
