// Settings of topics and channels: what GET gives, edited field by field, and sent back with its version, so that two
// people who change them at once do not undo each other's change without a word.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { get, post } from "./api.js";
import { announce, bytes, html, span, Trouble } from "./ui.js";

const words = {
	retention_bytes: "Keep at most (bytes per partition)", retention_count: "Keep at most (messages per partition)",
		retention_age_ms: "Keep for (ms)",
	keep_age_ms: "Keep confirmed messages for (ms)", keep_bytes: "Keep confirmed messages (bytes)",
	quota_bytes: "Quota (bytes)", quota_count: "Quota (messages)", quota_mode: "At the quota",
		min_isr: "Replicas that must have a message",
	partitions: "Partitions (can only grow)", order: "Order", key_header: "Header with the key",
		max_attempts: "Deliveries before a message is a dead letter",
	dead_letter: "Dead letters go to", rate_per_second: "Messages per second",
		max_in_flight: "In flight in the whole channel",
	sample_rate: "Sample (percent)", filter: "Filter (JSON)",
};
const choices = { order: ["none", "partition", "key", "declared"], quota_mode: ["reject", "drop-oldest"] };
const fixed = ["version", "durability"];
// What GET leaves out while it is 0.
const unsaid = { topic: { keep_age_ms: 0, keep_bytes: 0 } };
const notes = {
	topic: "0: the node's default, or no limit. −1: no limit.",
	channel: "0 or nothing: no limit, or the default.",
};

// inWords writes large numbers of bytes and milliseconds for people, too.
const inWords = (n, v) => (v >= 1000 && /_(ms|bytes)$/.test(n) ? html`<small>${n.endsWith("_ms") ? span(v / 1000)
	: bytes(v)}</small>` : null);

export function Settings({ where, kind, readOnly }) {
	const [had, setHad] = useState(null); // as the node gave them
	const [typed, setTyped] = useState({});
	const [error, setError] = useState(null);
	const load = async () => {
		try {
			setHad({ ...unsaid[kind], ...(await get(where)) });
			setError(null);
		} catch (e) {
			setError(e);
		}
	};
	useEffect(() => void load(), [where]);
	if (!had) return html`<${Trouble} error=${error} />`;
	const names = Object.keys(had).filter((n) => !fixed.includes(n));
	const changed = names.filter((n) => n in typed);
	const text = (n) => typed[n] ?? (typeof had[n] === "object" ? JSON.stringify(had[n]) : String(had[n]));
	const save = async (e) => {
		e.preventDefault();
		const wanted = { ...had };
		try {
			for (const n of changed) {
				const parse = { number: Number, object: JSON.parse }[typeof had[n]] ?? String;
				wanted[n] = parse(typed[n]);
			}
		} catch {
			setError(new Error("The filter is not JSON; nothing was changed."));
			return;
		}
		try {
			setHad({ ...unsaid[kind], ...(await post(where, wanted)) });
			setTyped({});
			setError(null);
			announce("The settings hold from now on.");
		} catch (err) {
			if (err.status === 409) {
				await load();
				setError(new Error("Somebody else changed the settings meanwhile: nothing of yours was saved. The fields "
					+ "that you did not touch show theirs now; look at them, and save again if yours is still meant."));
				return;
			}
			setError(err);
		}
	};
	const type = (n) => (e) => setTyped({ ...typed, [n]: e.target.value });
	return html`<form class="settings" onSubmit=${save} aria-label="Settings">
		<p class="note">Version ${had.version}${had.version === 0 ? ": never changed" : ""}. ${notes[kind]}${readOnly
			&& " Read only."}</p>
		<div class="fields">${names.map((n) => html`<label key=${n} class=${n in typed ? "changed" : ""}>${words[n] ?? n}
			${choices[n] && !readOnly ? html`<select value=${text(n)} onChange=${type(n)}>
				${[...new Set([...choices[n], text(n)])].map((c) => html`<option key=${c} value=${c}>${c
				|| "default"}</option>`)}</select>`
				: html`<input type=${typeof had[n] === "number" ? "number" : "text"} onInput=${type(n)} readOnly=${readOnly}
				value=${text(n) || (choices[n] && "default")} />`}
			${inWords(n, Number(text(n)))}
			${n in typed && html`<small>was ${typeof had[n] === "object" ? JSON.stringify(had[n]) : String(had[n])
				|| "empty"}</small>`}</label>`)}</div>
		<${Trouble} error=${error} />
		<div class="buttons">${!readOnly && html`<button disabled=${changed.length === 0}>Save</button>`}
			<button type="button" onClick=${() => { setTyped({}); load(); }}>Read again</button></div>
	</form>`;
}
