// Messages and their bodies: always as text nodes, so that nothing in them is ever more than text.
import { useMemo, useState } from "./vendor/hooks.mjs";
import { fetchNow, path, post } from "./api.js";
import { act, channelLink, html, plural, time, Trouble } from "./ui.js";
import { Id } from "./trace.js";
import { past } from "./units.js";

const encoder = new TextEncoder();
const most = 65536; // characters of a body that are shown: a browser is slow with more

function bytesOf(m) {
	if (m.body !== undefined) return encoder.encode(m.body);
	return Uint8Array.from(atob(m.body_base64 ?? ""), (c) => c.charCodeAt(0));
}

// hex writes bytes as 16 to a line, with the text beside them.
export function hex(data, most = 4096) {
	const lines = [];
	for (let at = 0; at < Math.min(data.length, most); at += 16) {
		const row = [...data.slice(at, at + 16)];
		const left = row.map((b) => b.toString(16).padStart(2, "0")).join(" ").padEnd(48);
		const right = row.map((b) => (b >= 32 && b < 127 ? String.fromCharCode(b) : "·")).join("");
		lines.push(`${at.toString(16).padStart(6, "0")}  ${left} ${right}`);
	}
	if (data.length > most) lines.push("…");
	return lines.join("\n");
}

// indent breaks JSON into lines. Its strings and numbers stay as they are: JSON.parse would round large numbers.
export function indent(text) {
	JSON.parse(text); // throws if it is not JSON
	let depth = 0, before = "", out = "";
	for (const [token] of text.matchAll(/"(?:[^"\\]|\\.)*"|[[\]{},:]|[^\s[\]{},:"]+/g)) {
		const closes = token === "]" || token === "}", empty = before === "[" || before === "{";
		if (closes) depth--;
		if (closes ? !empty : empty || before === ",") out += "\n" + "  ".repeat(depth);
		out += token === ":" ? ": " : token;
		if (token === "[" || token === "{") depth++;
		before = token;
	}
	return out;
}

// seen writes out the characters that cannot be seen, or that change the order in which others are read.
export const seen = (text) => text.replace(/[\0-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g,
	(c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);

export function body(m, form) {
	if (form === "hex") return hex(bytesOf(m));
	if (m.body === undefined) return `These ${m.body_bytes} bytes are not text:\n${hex(bytesOf(m), 256)}`;
	try {
		return seen(form === "json" ? indent(m.body) : m.body);
	} catch {
		return seen(m.body); // it is not JSON, or only its beginning is here
	}
}

// Body is worked out once, not each time that the page is drawn.
function Body({ m, form }) {
	const text = useMemo(() => body(m, form), [m, form]);
	return html`${text.length > most && html`<p class="note">The first ${most.toLocaleString("en")} characters of it:</p>`}
		<pre tabindex="0" aria-label=${`Body of message ${m.id}`}>${text.slice(0, most)}</pre>`;
}

const value = (x) => (x.value === undefined ? `${x.value_base64} (base64)` : seen(x.value));

// Origin says where a dead letter came from, and sends it back there.
function Origin({ m }) {
	const [topic, channel, id] = ["topic", "channel", "id"].map((name) => m.headers?.find((h) =>
		h.name === `penstock-origin-${name}`)?.value);
	if (!topic || !channel || !id) return null;
	const back = () => act(() => post(path("/channel/redrive/chosen", { topic, channel, id })), (r) => (r.moved
		? `The dead letter went back into ${topic}.` : "The dead letter waits no longer: it was redriven before."));
	return html`<p><small>Dead letter of <a href=${channelLink(topic, channel)}>${topic} / ${channel}</a>, message
		${" "}<${Id} topic=${topic} id=${id} /></small> <button type="button" onClick=${back}>Redrive</button></p>`;
}

// The fields of a search, which only topics have.
const searches = [["key", "Key"], ["header", "Header", "region=eu"], ["contains", "Text in the body"],
	["since", "Published since", "2h ago"]];

// Peek shows stored messages without taking them, and searches a topic for some.
export function Peek({ where, of }) {
	const [form, setForm] = useState("text");
	const [from, setFrom] = useState("");
	const [partition, setPartition] = useState("");
	const [count, setCount] = useState("10");
	const [list, setList] = useState(null);
	const [error, setError] = useState(null);
	const [wanted, setWanted] = useState({});
	const searched = !of.channel && Object.values(wanted).some(Boolean);
	const ask = async (e, place = { from, partition }, next) => {
		e?.preventDefault();
		setFrom(place.from);
		setPartition(place.partition);
		try {
			const since = wanted.since && past.read(wanted.since);
			if (since === undefined && wanted.since) throw new Error(`“${wanted.since}” is not ${past.like}.`);
			const query = searched && { ...wanted, since: since && new Date(since).toISOString(), next };
			setList({ ...(await fetchNow(path(searched ? "/topic/search" : where, { ...of, ...place, ...query, count }))),
				at: time(new Date()).slice(11) });
			setError(null);
		} catch (err) {
			setError(err);
		}
	};
	const last = list?.messages.at(-1);
	return html`
		<form class="row" onSubmit=${ask} aria-label="Peek at messages">
			<label>Partition <input type="number" min="0" placeholder="all" value=${partition}
				onInput=${(e) => setPartition(e.target.value)} /></label>
			<label>From message (id, or number) <input placeholder="the oldest" pattern="[0-9a-f]{16}|[0-9]+"
				title="16 lower-case hex digits or, where a partition is named, the number of a message in it"
				value=${from} onInput=${(e) => setFrom(e.target.value.trim())} /></label>
			<label>Count <input type="number" min="1" max="100" value=${count} onInput=${(e) => setCount(e.target.value)} />
				</label>
			<label>Bodies as <select value=${form} onChange=${(e) => setForm(e.target.value)}><option>text</option><option
				value="json">JSON where it is</option><option>hex</option></select></label>
			${!of.channel && searches.map(([name, label, like]) => html`<label key=${name}>${label} <input
				placeholder=${like} spellcheck=${false} value=${wanted[name] ?? ""}
				onInput=${(e) => setWanted({ ...wanted, [name]: e.target.value })} /></label>`)}
			<button>${searched ? "Search" : "Peek"}</button>
		</form>
		<${Trouble} error=${error} />
		${list && html`<p role="status">${list.messages.length === 0 && list.scanned === undefined
			? "There is no message." : `${plural(list.messages.length, "message")}${list.scanned === undefined ? ""
				: ` among ${list.scanned.toLocaleString("en")} that were looked at`}, as read at ${list.at}.${list.next
				? " There are more to look at." : ""}`}</p>
			<ol class="messages">${list.messages.map((m) => html`<li key=${m.id}>
				<p><${Id} topic=${of.topic} id=${m.id} /> <small>partition ${m.partition}, number ${m.number},
					${" "}${time(m.timestamp)}, ${
					m.body_bytes.toLocaleString("en")} ${m.body_bytes === 1 ? "byte" : "bytes"}${
					m.truncated ? ", only the beginning is shown" : ""}${m.due ? `, due ${time(m.due)}` : ""}</small></p>
				${m.headers && html`<p><small>${m.headers.map((x, i) => html`<span class="header" key=${i}>
					${seen(x.name)}: ${value(x)}</span> `)}</small></p>`}
				<${Origin} m=${m} />
				<${Body} m=${m} form=${form} />
			</li>`)}</ol>
			${list.next && html`<button onClick=${() => ask(null, undefined, list.next)}>Go on</button>`}
			${last && list.scanned === undefined && list.messages.every((m) => m.partition === last.partition)
				&& html`<button onClick=${() => ask(null, { partition: String(last.partition),
					from: String(last.number + 1) })}>Next messages</button>`}`}`;
}
