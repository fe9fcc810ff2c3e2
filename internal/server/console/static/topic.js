// One topic: its numbers, channels, partitions, settings, and publishing.
import { useState } from "./vendor/hooks.mjs";
import { path, post, useLook } from "./api.js";
import { act, bytes, channelLink, Destroy, Facts, html, Marks, Missing, Pager, Part, rate, short, span, Table,
	Tag, Trouble, useAddress, useLater } from "./ui.js";
import { Lacks, useMay } from "./may.js";
import { newest, Plot, pointsOf, useHistory } from "./plot.js";
import { Peek } from "./messages.js";
import { Settings } from "./settings.js";

const pageSize = 100, partitionPage = 25; // channels, and partitions, of which a topic may have thousands

export function Topic({ topic, session }) {
	const [at, setOffset] = useAddress("offset", 0);
	const offset = Number(at) || 0;
	const may = useMay(session, topic);
	const seen = (name, query) => may?.view && path(name, { topic, ...query });
	// Who may look at some channels only is told of these.
	const channels = useLook(may?.looks && path("/channels", { topic, offset: offset || undefined, count: pageSize }));
	const own = useLook(seen("/stats", { format: "json", include_clients: "false", include_mem: "false" }));
	const { recent, shown, range } = useHistory(may?.view && { topic }, 5000);
	const { data } = channels;
	const sums = (field) => pointsOf(shown.data?.total, field);
	const { paused, made_by: maker } = own.data?.topics?.[0] ?? {};
	const last = (field) => newest(pointsOf(recent.data?.total, field)); // undefined: no node has measured it yet
	const verb = (name, said) => act(() => post(path(`/topic/${name}`, { topic })), said).then(() => {
		channels.again();
		own.again();
	});
	return html`
		<h1><a href="#/topics">Topics</a> / <span class="name">${topic}</span> <${Marks} of=${own.data?.topics?.[0]} /></h1>
		<${Trouble} error=${data ? null : channels.error} />
		<${Missing} of=${data?.missing} unserved=${data?.unserved_partitions} />
		${data && html`
		<${Facts} of=${[["Published", rate(last("published"))], ["Delivered", rate(last("delivered"))],
			["Waiting", short(last("depth"))], ["Stored", bytes(last("stored_bytes"))], ["Channels", short(data.count)],
			maker && ["Made by", html`<span class="name">${maker}</span>`]]} />
		${may.view && range}
		<div class="plots">
			<${Plot} title="Messages per second" unit=${rate} series=${[{ name: "published",
				points: sums("published") }, { name: "delivered", points: sums("delivered") }]} />
			<${Plot} title="Messages waiting" series=${[{ name: "waiting", points: sums("depth") }]} />
		</div>
		<h2>Channels</h2>
		<${Table} label="Channels" rows=${data.channels} keyOf=${(c) => c.name}
			empty=${data.unserved_partitions?.length
				? "The nodes that answer serve no channel of this topic."
				: "No channel reads this topic: messages wait in it."} columns=${[
			{ name: "Channel", of: (c) => html`<a href=${channelLink(topic, c.name)}>${c.name}</a> <${Marks} of=${c} />` },
			{ name: "Waiting", number: true, of: (c) => short(c.depth) },
			{ name: "Oldest", number: true, of: (c) => (c.oldest_seconds ? span(c.oldest_seconds) : "–") },
			{ name: "In flight", number: true, of: (c) => short(c.in_flight_count) },
			{ name: "Deferred", number: true, of: (c) => short(c.deferred_count) },
			{ name: "Consumers", number: true, of: (c) => short(c.client_count) },
			{ name: "Finished", number: true, of: (c) => rate(c.finished_per_second) },
			{ name: "Requeued", number: true, of: (c) => rate(c.requeued_per_second) },
		]} />
		${(data.count > pageSize || offset > 0) && html`<${Pager} of=${data} offset=${offset} count=${pageSize}
			onOffset=${setOffset} />`}
		${may.creates && html`<${NewChannel} session=${session} topic=${topic} done=${channels.again} />`}
		${session.cluster && may.view && html`<${Partitions} topic=${topic} admin=${session.admin} />`}`}
		${may?.publish && (data || !may.looks) && html`<${Part} title="Publish">
			${() => html`<${Publish} topic=${topic} />`}<//>`}
		${data && may.admin && html`<${Part} title="Peek at stored messages">
			${() => html`<${Peek} where="/topic/peek" of=${{ topic }} />`}<//>`}
		${data && may.view && html`<${Part} title="Settings">${() => html`<${Settings} where=${path("/topic/settings",
			{ topic })} kind="topic" readOnly=${!may.admin} />`}<//>`}
		<${Lacks} may=${may} of="topic" />
		${data && may.admin && html`<section class="actions" aria-label="Change the topic">
			${paused ? html`<button onClick=${() => verb("unpause", `Topic ${topic} goes on.`)}>Resume</button>`
				: html`<button onClick=${() => verb("pause", `Topic ${topic} is paused: new messages wait in it.`)}>Pause</button>`}
			<${Destroy} label="Empty the topic" name=${topic} onDo=${() => verb("empty", `Topic ${topic} was emptied.`)}
				warning="Messages that no channel has got yet, because the topic is paused or has no channel,
					are discarded for ever." />
			<${Destroy} label="Delete the topic" name=${topic}
				warning="The topic goes with all its messages and channels, on all nodes. This cannot be undone."
				onDo=${async () => (await act(() => post(path("/topic/delete",
					{ topic })), `Topic ${topic} was deleted.`)) && (location.hash = "#/topics")} />
		</section>`}`;
}

function NewChannel({ session, topic, done }) {
	const [name, set] = useState("");
	const later = useLater(name);
	const refused = useMay(session, later && !session.admin && topic, later)?.admin === false && later === name;
	const [from, setFrom] = useState("");
	const create = async (e) => {
		e.preventDefault();
		if (await act(() => post(path("/channel/create", { topic, channel: name, from })), `Channel ${name} exists.`)) {
			set("");
			done();
		}
	};
	return html`<form class="row" onSubmit=${create} aria-label="Create a channel">
		<label>New channel <input required maxlength="64" value=${name} onInput=${(e) => set(e.target.value)} /></label>
		<label>begins at <select value=${from} onChange=${(e) => setFrom(e.target.value)}>
			<option value="">default</option><option value="oldest">oldest: the oldest message</option><option
				value="newest">newest: the next message</option></select></label>
		<button disabled=${refused}>Create</button>
		${refused && html`<p class="note" role="status">Your token may not make a channel of this name.</p>`}
	</form>`;
}

function Publish({ topic }) {
	const [body, setBody] = useState("");
	const [key, setKey] = useState("");
	const [delay, setDelay] = useState("");
	const publish = async (e) => {
		e.preventDefault();
		await act(() => post(path("/pub", { topic, key, defer: delay && String(Math.round(delay * 1000)) }),
			body), `The message is stored in ${topic}.`);
	};
	return html`<form onSubmit=${publish}>
		<label>Message <textarea required rows="4" spellcheck=${false} value=${body}
			onInput=${(e) => setBody(e.target.value)}></textarea></label>
		<div class="row"><label>Key <input value=${key} onInput=${(e) => setKey(e.target.value)} /></label>
			<label>Delay in seconds <input type="number" min="0" step="any" value=${delay}
				onInput=${(e) => setDelay(e.target.value)} /></label>
			<button>Publish</button></div>
	</form>`;
}

function Partitions({ topic, admin }) {
	const look = useLook(path("/cluster/topics", { topic }));
	const status = useLook(admin && "/cluster/status", 5000); // only moving a replica needs it
	const [move, setMove] = useState({ partition: "", from: "", to: "" });
	const [offset, setOffset] = useState(0);
	const t = look.data?.topics?.[0];
	if (!t) return html`<h2>Partitions</h2><${Trouble} error=${look.error} />`;
	const nodes = status.data?.nodes ?? [];
	const sorted = t.partitions.toSorted((a, b) => (a.state === "ok") - (b.state === "ok")); // those in trouble first
	const p = t.partitions.find((p) => String(p.partition) === move.partition);
	const field = (name) => (e) => setMove({ ...move, [name]: e.target.value });
	const lead = (partition) => act(() => post("/cluster/transfer-leader", { topic, partition }),
		(r) => r.message).then(look.again);
	const go = async (e) => {
		e.preventDefault();
		if (await act(() => post("/cluster/move", { topic, partition: Number(move.partition), from: move.from,
			to: move.to }), (r) => r.message)) look.again();
	};
	return html`<h2>Partitions</h2>
		<${Table} label="Partitions" rows=${sorted.slice(offset, offset + partitionPage)} keyOf=${(p) => p.partition}
			empty="None." columns=${[
			{ name: "Partition", of: (p) => p.partition },
			{ name: "State", of: (p) => html`<${Tag} kind=${p.state === "ok" ? "good" : "bad"}>
				${p.state.replaceAll("_", " ")}<//>` },
			{ name: "Leader", of: (p) => p.leader || "none" },
			{ name: "In sync", of: (p) => html`${p.isr.join(", ")} ${p.isr.length < p.replicas.length
				&& html`<small>(without ${p.replicas.filter((r) => !p.isr.includes(r)).join(", ")})</small>`}` },
			{ name: "Replicas", of: (p) => p.replicas.join(", ") },
			admin && { name: "Leadership", of: (p) => html`<button onClick=${() => lead(p.partition)}
				aria-label=${`Transfer the leadership of partition ${p.partition}`}>Transfer</button>` },
		].filter(Boolean)} />
		${sorted.length > partitionPage && html`<${Pager} label="Pages of partitions" of=${{ count: sorted.length }}
			offset=${offset} count=${partitionPage} onOffset=${setOffset} />`}
		${admin && html`<${Part} title="Move a replica">${() => html`<form class="row" onSubmit=${go}
				aria-label="Move a replica">
			<label>Move partition <input type="number" required min="0" max=${t.partitions.length - 1}
				value=${move.partition} onInput=${field("partition")} /></label>
			<label>from <select required value=${move.from} onChange=${field("from")}><option value=""></option>
				${(p?.replicas ?? []).map((n) => html`<option key=${n}>${n}</option>`)}</select></label>
			<label>to <select required value=${move.to} onChange=${field("to")}><option value=""></option>
				${nodes.filter((n) => n.live && !p?.replicas.includes(n.name)).map((n) => html`<option key=${n.name}>
				${n.name}</option>`)}</select></label>
			<button>Move</button>
		</form>`}<//>`}`;
}
