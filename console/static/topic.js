// One topic: its numbers, channels, partitions, settings, and publishing.
import { useState } from "./vendor/hooks.mjs";
import { path, post, useLook } from "./api.js";
import { act, bytes, channelLink, Destroy, Facts, html, Missing, Part, Paused, rate, short, span, Table,
	Tag, Trouble } from "./ui.js";
import { newest, Plot, sums } from "./plot.js";
import { Peek } from "./messages.js";
import { Settings } from "./settings.js";

export function Topic({ topic, session }) {
	const channels = useLook(path("/channels", { topic, count: 200 }));
	const own = useLook(path("/stats", { format: "json", topic, include_clients: "false", include_mem: "false" }));
	const history = useLook(path("/history", { topic }), 5000);
	const { data } = channels;
	const nodes = history.data?.nodes ?? [];
	const paused = own.data?.topics?.[0]?.paused;
	const last = (field) => newest(sums(nodes, field)) ?? (nodes.length ? 0 : undefined);
	const verb = (name, said) => act(() => post(path(`/topic/${name}`, { topic })), said).then(() => {
		channels.again();
		own.again();
	});
	return html`
		<h1><a href="#/topics">Topics</a> / <span class="name">${topic}</span> <${Paused} of=${paused} /></h1>
		<${Trouble} error=${data ? null : channels.error} />
		<${Missing} of=${data?.missing} />
		${data && html`
		<${Facts} of=${[["Published", rate(last("published"))], ["Delivered", rate(last("delivered"))],
			["Waiting", short(last("depth"))],
			["Stored", bytes(last("stored_bytes") ?? 0)], ["Channels", short(data.count)]]} />
		<div class="plots">
			<${Plot} title="Messages per second" unit=${rate} series=${[{ name: "published",
				points: sums(nodes, "published") }, { name: "delivered", points: sums(nodes, "delivered") }]} />
			<${Plot} title="Messages waiting" series=${[{ name: "waiting", points: sums(nodes, "depth") }]} />
		</div>
		<h2>Channels</h2>
		<${Table} label="Channels" rows=${data.channels} keyOf=${(c) => c.name}
			empty="No channel reads this topic: messages wait in it." columns=${[
			{ name: "Channel", of: (c) => html`<a href=${channelLink(topic, c.name)}>${c.name}</a> <${Paused}
				of=${c.paused} />` },
			{ name: "Waiting", number: true, of: (c) => short(c.depth) },
			{ name: "Oldest", number: true, of: (c) => (c.oldest_seconds ? span(c.oldest_seconds) : "–") },
			{ name: "In flight", number: true, of: (c) => short(c.in_flight_count) },
			{ name: "Deferred", number: true, of: (c) => short(c.deferred_count) },
			{ name: "Consumers", number: true, of: (c) => short(c.client_count) },
			{ name: "Finished", number: true, of: (c) => rate(c.finished_per_second) },
			{ name: "Requeued", number: true, of: (c) => rate(c.requeued_per_second) },
		]} />
		${data.count > data.channels.length && html`<p
			class="note">The first ${data.channels.length} of ${data.count} channels are shown.</p>`}
		<${NewChannel} topic=${topic} done=${channels.again} />
		${session.cluster && html`<${Partitions} topic=${topic} />`}
		<${Part} title="Publish">${() => html`<${Publish} topic=${topic} />`}<//>
		<${Part} title="Look at stored messages">${() => html`<${Peek} where="/topic/peek" of=${{ topic }} />`}<//>
		<${Part} title="Settings">${() => html`<${Settings} where=${path("/topic/settings", { topic })} kind="topic" />`}<//>
		<section class="actions" aria-label="Change the topic">
			${paused ? html`<button onClick=${() => verb("unpause", `Topic ${topic} goes on.`)}>End the pause</button>`
				: html`<button onClick=${() => verb("pause", `Topic ${topic} is paused: new messages wait in it.`)}>Pause</button>`}
			<${Destroy} label="Empty the topic" name=${topic} onDo=${() => verb("empty", `Topic ${topic} was emptied.`)}
				warning="Messages that no channel has got yet, because the topic is paused or has no channel,
					are discarded for ever." />
			<${Destroy} label="Delete the topic" name=${topic}
				warning="The topic goes with all its messages and channels, on all nodes. This cannot be taken back."
				onDo=${async () => (await act(() => post(path("/topic/delete",
					{ topic })), `Topic ${topic} was deleted.`)) && (location.hash = "#/topics")} />
		</section>`}`;
}

function NewChannel({ topic, done }) {
	const [name, set] = useState("");
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
			<option value="">the usual place</option><option value="oldest">the oldest message</option><option
				value="newest">the next message</option></select></label>
		<button>Create</button>
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

function Partitions({ topic }) {
	const look = useLook(path("/cluster/topics", { topic }));
	const status = useLook("/cluster/status", 5000);
	const [move, setMove] = useState({ partition: "", from: "", to: "" });
	const t = look.data?.topics?.[0];
	if (!t) return html`<h2>Partitions</h2><${Trouble} error=${look.error} />`;
	const nodes = status.data?.nodes ?? [];
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
		<${Table} label="Partitions" rows=${t.partitions} keyOf=${(p) => p.partition} empty="None." columns=${[
			{ name: "Partition", of: (p) => p.partition },
			{ name: "State", of: (p) => html`<${Tag} kind=${p.state === "ok" ? "good" : "bad"}>
				${p.state.replaceAll("_", " ")}<//>` },
			{ name: "Leader", of: (p) => p.leader || "none" },
			{ name: "In sync", of: (p) => html`${p.isr.join(", ")} ${p.isr.length < p.replicas.length
				&& html`<small>(without ${p.replicas.filter((r) => !p.isr.includes(r)).join(", ")})</small>`}` },
			{ name: "Replicas", of: (p) => p.replicas.join(", ") },
			{ name: "Leadership", of: (p) => html`<button onClick=${() => lead(p.partition)}
				aria-label=${`Give the leadership of partition ${p.partition} to another node`}>Give away</button>` },
		]} />
		<form class="row" onSubmit=${go} aria-label="Move a replica">
			<label>Move partition <select required value=${move.partition} onChange=${field("partition")}><option value="">
				</option>${t.partitions.map((p) => html`<option key=${p.partition}>${p.partition}</option>`)}</select></label>
			<label>from <select required value=${move.from} onChange=${field("from")}><option value=""></option>
				${(p?.replicas ?? []).map((n) => html`<option key=${n}>${n}</option>`)}</select></label>
			<label>to <select required value=${move.to} onChange=${field("to")}><option value=""></option>
				${nodes.filter((n) => n.live && !p?.replicas.includes(n.name)).map((n) => html`<option key=${n.name}>
				${n.name}</option>`)}</select></label>
			<button>Move</button>
		</form>`;
}
