// The life of one message, behind every id of a message, as penstock trace tells it.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { fetchNow, path } from "./api.js";
import { bytes, Dialog, Fragment, html, plural, Table, time, topicLink, Trouble } from "./ui.js";

const words = (text) => text.replaceAll("_", " ");

// Id is the id of a message; a click tells its life.
export function Id({ topic, id }) {
	const [open, setOpen] = useState(false);
	return html`<${Fragment}><button type="button" class="plain name whole" aria-label=${`Trace of message ${id}`}
		onClick=${() => setOpen(true)}>${id}</button>
		${open && html`<${Trace} topic=${topic} id=${id} onClose=${() => setOpen(false)} />`}<//>`;
}

function Trace({ topic, id, onClose }) {
	const [look, set] = useState({});
	useEffect(() => void fetchNow(path("/topic/trace", { topic, id })).then((data) => set({ data }),
		(error) => set({ error })), []);
	const { data, error } = look, at = data?.stored;
	return html`<${Dialog} title=${`Message ${id}`} onClose=${onClose}>
		${!data && !error && html`<p role="status">Asking the node…</p>`}
		<${Trouble} error=${error} />
		${data && html`<p>${at ? `Stored ${time(at.at)} by ${at.leader || "a leader that is not known"} in partition ${
			data.partition}, number ${data.number}: ${bytes(at.body_bytes)}, ${plural(at.headers, "header")}${
			at.due ? `, not before ${time(at.due)}` : ""}.` : `The log does not have the message any more: it begins with
				number ${data.log_from}.`}</p>
		<${Table} label="Channels of the message" rows=${data.channels ?? []} empty="No channel has it."
			keyOf=${(c) => c.channel} columns=${[
			{ name: "Channel", of: (c) => c.channel }, { name: "State", of: (c) => words(c.state) },
			{ name: "Since", of: (c) => time(c.at) }, { name: "Deliveries", number: true, of: (c) => c.attempts ?? "–" },
			{ name: "Until", of: (c) => time(c.due) },
			{ name: "Remark", of: (c) => (c.dead_letter_topic
				? html`to <a href=${topicLink(c.dead_letter_topic)} onClick=${onClose}>${c.dead_letter_topic}</a>`
				: c.client ? `consumer ${c.client}` : "") },
		]} />
		<${Table} label="What the log says" rows=${data.events ?? []} empty="The log says nothing else of it."
			columns=${[{ name: "At", of: (e) => time(e.at) }, { name: "What", of: (e) => words(e.kind) },
			{ name: "Channel", of: (e) => e.channel || "–" }, { name: "By", of: (e) => e.leader || "–" },
		]} />
		${data.cut && html`<p class="note">The log was read up to a limit (${words(data.cut)}): later events are not
			known.</p>`}`}
		<div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
	<//>`;
}
