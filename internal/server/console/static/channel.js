// One channel: how far behind it is, who consumes it, what is in flight, and what can be done about it.
import { useState } from "./vendor/hooks.mjs";
import { path, post, useLook } from "./api.js";
import { act, Destroy, Dialog, Facts, Fragment, html, Marks, Missing, Part, plural, rate, short, span, Table, time,
	topicLink, Trouble } from "./ui.js";
import { Plot, pointsOf, useHistory } from "./plot.js";
import { Id } from "./trace.js";
import { Lacks, useMay } from "./may.js";
import { Peek, seen } from "./messages.js";
import { Settings } from "./settings.js";

const most = 100; // messages in flight or deferred that are shown

export function Channel({ topic, channel, session }) {
	const may = useMay(session, topic, channel), sees = may?.view;
	const look = useLook(sees && path("/channels", { topic, channel, clients: "true", dead_letters: "true" }));
	const { shown, range } = useHistory(sees && { topic, channel }, 5000);
	const lags = useLook(sees && path("/channels", { topic, channel, partitions: "true" }), 5000);
	const c = look.data?.channels[0], dead = c?.dead_letter_topic;
	const letters = look.data?.dead_letters?.find((l) => l.topic === dead)?.count ?? 0;
	const of = { topic, channel };
	const verb = (name, said, query = {}) => act(() => post(path(`/channel/${name}`, { ...of, ...query })),
		said).then(look.again);
	const line = (name, field) => ({ name, points: pointsOf(shown.data?.total, field) });
	return html`
		<h1><a href="#/topics">Topics</a> / <a class="name" href=${topicLink(topic)}>${topic}</a> / <span class="name">
			${channel}</span> <${Marks} of=${c} /></h1>
		<${Trouble} error=${look.data ? null : look.error} />
		<${Missing} of=${look.data?.missing} unserved=${look.data?.unserved_partitions} />
		${sees === false && html`<${Lacks} may=${{}} of="channel" />`}
		${look.data && !c && html`<p class="empty">There is no such channel on the nodes that answer.</p>`}
		${c && html`
		<${Facts} of=${[
			["Waiting", short(c.depth)], ["Oldest", c.oldest_seconds ? span(c.oldest_seconds) : "–"],
			["In flight", short(c.in_flight_count)], ["Deferred", short(c.deferred_count)], ["Consumers", short(consumers(c))],
			["Finished", rate(c.finished_per_second)], ["Requeued", rate(c.requeued_per_second)],
			["Timed out", rate(c.timed_out_per_second)],
			dead && ["Dead letters", html`<a href=${topicLink(dead)}>${short(letters)}</a>`],
			c.outbox_count && ["Not moved yet", short(c.outbox_count)], c.dropped_count && ["Dropped", short(c.dropped_count)],
		]} />
		${c.aside_count > 0 && html`<p class="trouble">${plural(c.aside_count, "dead letter")} could not be moved to the
			dead-letter topic: ${c.aside_why}. What is aside is kept and tried again.</p>`}
		${c.full_partitions > 0 && html`<p class="trouble">Nothing new of ${plural(c.full_partitions, "partition")} is
			delivered: too many messages wait between finished ones, in flight or deferred. Nothing is lost.</p>`}
		${c.skipping && html`<p class="trouble">All that is published is discarded, ${
			c.skipped_before && "at least "}${plural(c.skipped_count, "message")} since ${time(c.skipping_since)}${
			c.skipped_before && " or earlier"}. ${may?.admin && html`<button onClick=${() => verb("unskip",
				`Channel ${channel} delivers again.`)}>Deliver again</button>`}</p>`}
		${c.starved && html`<p class="trouble">For 10 s consumers have asked for nothing: they back off, or hang.</p>`}
		${c.dropping && html`<p class="trouble">Retention or a quota removes messages before they are finished.</p>`}
		<p class="note">The numbers above are of now; what stands at a plot is of the last full 10 s.</p>
		${range}
		<div class="plots">
			<${Plot} title="Lag: messages"
				series=${[line("waiting", "depth"), line("in flight", "in_flight"), line("deferred", "deferred")]} />
			<${Plot} title="Lag: age of the oldest message" unit=${span} series=${[line("oldest", "oldest_seconds")]} />
			<${Plot} title="Messages per second" unit=${rate}
				series=${["delivered", "finished", "requeued", "timed out"].map((s) => line(s, s.replace(" ", "_")))} />
		</div>
		<h2>Consumers</h2>
		${c.clients?.length > 0 && html`<p class="note">A consumer has a line for each leader that delivers to it.</p>`}
		<${Table} label="Consumers" rows=${c.clients ?? []} empty=${`Nobody consumes this channel${
			c.skipping ? "." : ": its messages wait."}`} columns=${[
			{ name: "Client", of: (k) => k.client_id || k.remote_address || "–" },
			{ name: "Host", long: true, of: (k) => k.hostname },
			{ name: "Address", of: (k) => k.remote_address }, { name: "Leader", of: (k) => k.leader },
			...Object.entries({ Ready: "ready_count", "In flight": "in_flight_count", Finished: "finish_count",
				Requeued: "requeue_count" }).map(([name, field]) => ({ name, number: true, of: (k) => short(k[field]) })),
			{ name: "Agent", of: (k) => k.user_agent }, { name: "Identity", of: (k) => k.auth_identity || "–" },
		]} />
		<h2>Partitions</h2>
		<${Lags} of=${of} rows=${lags.data?.channels[0]?.partitions ?? []} reads=${may?.admin} />
		${may?.view && html`<${Part} title="In flight">${() => html`<${Waiting} of=${of} what="pending" may=${may}
			all=${c.in_flight_count} />`}<//>
		<${Part} title="Deferred">${() => html`<${Waiting} of=${of} what="deferred" may=${may}
			all=${c.deferred_count} />`}<//>`}
		${may?.admin && html`<${Part} title="Peek at waiting messages">
			${() => html`<${Peek} where="/channel/peek" of=${of} />`}<//>
		<${Part} title="Seek">${() => html`<${Seek} go=${verb} name=${channel} />`}<//>`}
		${may?.view && html`<${Part} title="Settings">${() => html`<${Settings} where=${path("/channel/settings", of)}
			kind="channel" readOnly=${!may.admin} />`}<//>`}
		<${Lacks} may=${may && { ...may, publish: false }} of="channel" />
		${may?.admin && html`<section class="actions" aria-label="Change the channel">
			${c.paused ? html`<button onClick=${() => verb("unpause", `Channel ${channel} goes on.`)}>Resume</button>`
				: html`<button onClick=${() => verb("pause", `Channel ${channel} is paused.`)}>Pause</button>`}
			<${Redrive} of=${of} waits=${letters} from=${dead} go=${(count) => verb("redrive",
				(r) => `${plural(r.moved, "dead letter")} went back into ${topic}.`, { count })} />
			<${Destroy} label="Empty the channel" name=${channel} onDo=${() => verb("empty", `Channel ${channel} was emptied.`)}
				warning=${`All messages that wait in the channel count as finished:
					${short(c.depth)} now. This cannot be undone.`} />
			<${Destroy} label="Delete the channel" name=${channel}
				warning=${`The channel goes with its place in the topic, and with ${plural(c.outbox_count ?? 0, "dead letter")}
					not moved yet; its consumers are disconnected. This cannot be undone.`}
				onDo=${async () => (await act(() => post(path("/channel/delete",
					of)), `Channel ${channel} was deleted.`)) && (location.hash = topicLink(topic))} />
		</section>`}`}`;
}

// consumers says how many consume. The node does not add up those of different leaders: most have a line at each.
const consumers = (c) => Math.max(c.client_count,
	new Set((c.clients ?? []).map((k) => `${k.client_id} ${k.hostname}`)).size);

// Lags shows what waits in each partition and, of an ordered channel, which message holds the others up: with its
// headers, among them the key, if the token may read messages.
function Lags({ of, rows, reads }) {
	const blocked = rows.some((r) => r.blocked_by);
	return html`<${Table} label="Partitions" rows=${rows} keyOf=${(r) => r.partition} empty="No node serves one now."
		columns=${[
		{ name: "Partition", of: (r) => r.partition }, { name: "Leader", of: (r) => r.leader },
		{ name: "Waiting", number: true, of: (r) => short(r.depth) },
		{ name: "Oldest", number: true, of: (r) => (r.oldest_seconds ? span(r.oldest_seconds) : "–") },
		{ name: "In flight", number: true, of: (r) => short(r.in_flight_count) },
		{ name: "Deferred", number: true, of: (r) => short(r.deferred_count) },
		blocked && { name: "Held up by", long: true, of: (r) => r.blocked_by && html`<${Id} topic=${of.topic}
			id=${r.blocked_by} />: ${plural(r.blocked_count, "message")} behind it
			${reads && html` <${Headers} of=${of} id=${r.blocked_by} />`}` },
	].filter(Boolean)} />`;
}

function Headers({ of, id }) {
	const { data } = useLook(path("/channel/peek", { ...of, from: id, count: 1 }), 30000);
	const m = data?.messages.find((m) => m.id === id);
	return html`<small>${m?.headers?.slice(0, 4).map((h) => `${seen(h.name)}: ${seen(h.value ?? "…")}`)
		.join(", ")}</small>`;
}

// Redrive asks how many dead letters are to come back.
function Redrive({ of, waits, from, go }) {
	const [open, setOpen] = useState(false), [count, setCount] = useState("");
	const close = () => setOpen(false);
	const start = async (e) => {
		e.preventDefault();
		close();
		await go(count);
	};
	return html`<${Fragment}><button onClick=${() => setOpen(true)}>Redrive dead letters…</button>
		${open && html`<${Dialog} title=${`Redrive dead letters: ${of.channel}`} onClose=${close}><form onSubmit=${start}>
			<p>${from ? html`${plural(waits, "dead letter")} of all channels ${waits === 1 ? "waits" : "wait"} in topic
				${" "}<a href=${topicLink(from)} onClick=${close}>${from}</a>.` : "The channel has no dead-letter topic now."}
				${" "}Those of this channel are published again, for this channel only. Their attempts begin anew.</p>
			<label>How many at most <input type="number" min="1" max="1000" placeholder="as many as one request takes"
				value=${count} onInput=${(e) => setCount(e.target.value)} /></label>
			<div class="buttons"><button type="button" onClick=${close}>Cancel</button><button>Redrive</button></div>
		</form><//>`}<//>`;
}

// Waiting lists messages in flight or deferred.
function Waiting({ of, what, may, all }) {
	const deferred = what === "deferred", look = useLook(path(`/channel/${what}`, { ...of, count: most }));
	if (!look.data) return html`<${Trouble} error=${look.error} />`;
	const finish = (id) => act(() => post(path("/channel/finish", { ...of, id })), `Message ${id} is finished.`)
		.then(look.again);
	return html`${all > look.data.messages.length && look.data.messages.length >= most && html`<p class="note">${deferred
		? "Those that are due first" : "Those in flight for longest"}: ${most} of ${all.toLocaleString("en")}.</p>`}
		<${Table} label=${deferred ? "Deferred messages" : "Messages in flight"} rows=${look.data.messages}
		keyOf=${(m) => m.id} empty=${deferred ? "No message is deferred." : "No message is in flight."} columns=${[
			{ name: "Message", of: (m) => html`<${Id} topic=${of.topic} id=${m.id} />` },
			...["Partition", "Attempts"].map((name) => ({ name, number: true, of: (m) => m[name.toLowerCase()] })),
			!deferred && { name: "Since", of: (m) => time(m.since) }, { name: deferred ? "Delivered at" : "Times out at",
				of: (m) => time(m.due) }, !deferred && { name: "Client", of: (m) => m.client || "–" },
			may?.admin && { name: "Change", of: (m) => html`<${Destroy} plain=${true} label="Finish" name=${m.id}
				onDo=${() => finish(m.id)} warning="The message counts as finished in this channel, as if a consumer had
					done it. This cannot be undone." />` },
		].filter(Boolean)} />`;
}

const places = {
	beginning: "oldest: the oldest stored message", end: "newest: the next published message", time: "a time",
		id: "a message", count: "messages forward, or back (below 0)",
};

function Seek({ go, name }) {
	const [to, setTo] = useState("time"), [value, setValue] = useState("");
	const needs = to !== "beginning" && to !== "end";
	const sent = () => (needs ? (to === "time" ? new Date(value).toISOString() : value) : undefined);
	const where = { time: `what was published at ${time(value)}, or later`, id: `message ${value}`,
		count: `${Math.abs(value)} messages ${value < 0 ? "back" : "forward"}` }[to] ?? places[to].split(": ")[1];
	return html`
		<div class="row">
			<label>To <select value=${to} onChange=${(e) => { setTo(e.target.value); setValue(""); }}>
				${Object.entries(places).map(([k, text]) => html`<option key=${k} value=${k}>${text}</option>`)}</select></label>
			${needs && html`<label>${{ time: "Time", id: "Message id", count: "Messages" }[to]} <input
				type=${{ time: "datetime-local", count: "number" }[to] ?? "text"} step=${to === "time" ? "1" : undefined}
				value=${value} onInput=${(e) => setValue(e.target.value)} /></label>`}
			${(!needs || value) && html`<${Destroy} label="Seek" name=${name}
				warning="Going forward counts what lies between as finished; going back delivers it again."
				onDo=${() => go("seek", `Channel ${name} goes on at: ${where}.`, { to, value: sent() })} />`}
		</div>`;
}
