// Messages and their bodies: always as text nodes, so that nothing in them is ever more than text.
import { useState } from "./vendor/hooks.mjs";
import { get, path } from "./api.js";
import { html, time, Trouble } from "./ui.js";

const encoder = new TextEncoder();

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

function pretty(m) {
	try {
		return JSON.stringify(JSON.parse(m.body), null, 2);
	} catch {
		return "This is not JSON.";
	}
}

export function body(m, form) {
	if (form === "hex") return hex(bytesOf(m));
	if (form === "json") return m.body === undefined ? "This is not text." : pretty(m);
	return m.body ?? `These ${m.body_bytes} bytes are not text:\n${hex(bytesOf(m), 256)}`;
}

const value = (x) => x.value ?? `${x.value_base64} (base64)`;

// Peek shows stored messages without taking them.
export function Peek({ where, of }) {
	const [form, setForm] = useState("text");
	const [from, setFrom] = useState("");
	const [count, setCount] = useState("10");
	const [list, setList] = useState(null);
	const [error, setError] = useState(null);
	const ask = async (e) => {
		e?.preventDefault();
		try {
			setList(await get(path(where, { ...of, from, count })));
			setError(null);
		} catch (err) {
			setError(err);
		}
	};
	return html`
		<form class="row" onSubmit=${ask} aria-label="Look at messages">
			<label>From message id <input placeholder="the oldest" pattern="[0-9a-f]{16}" title="16 lower-case hex digits"
				value=${from} onInput=${(e) => setFrom(e.target.value.trim())} /></label>
			<label>Count <input type="number" min="1" max="100" value=${count} onInput=${(e) => setCount(e.target.value)} />
				</label>
			<label>Bodies as <select value=${form} onChange=${(e) => setForm(e.target.value)}><option>text</option><option
				value="json">JSON</option><option>hex</option></select></label>
			<button>Look</button>
		</form>
		<${Trouble} error=${error} />
		${list && html`<p role="status">${list.messages.length === 0
			? "There is no message." : `${list.messages.length} messages, as they were a moment ago.`}</p>
			<ol class="messages">${list.messages.map((m) => html`<li key=${m.id}>
				<p><b class="name">
					${m.id}</b> <small>partition ${m.partition}, number ${m.number}, ${time(m.timestamp)}, ${m.body_bytes} bytes${
					m.truncated ? ", only the beginning is shown" : ""}${m.due ? `, due ${time(m.due)}` : ""}</small></p>
				${m.headers && html`<p><small>${m.headers.map((x, i) => html`<span class="header" key=${i}>
					${x.name}: ${value(x)}</span> `)}</small></p>`}
				<pre tabindex="0" aria-label=${`Body of message ${m.id}`}>${body(m, form)}</pre>
			</li>`)}</ol>`}`;
}
