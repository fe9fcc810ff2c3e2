// One channel: how far behind it is, who consumes it, what is in flight, and what can be done about it.
import { useState } from "./vendor/hooks.mjs";
import { path, post, useLook } from "./api.js";
import { act, Destroy, Facts, html, Marks, Missing, Part, plural, rate, short, span, Table, time,
	topicLink, Trouble } from "./ui.js";
import { Plot, pointsOf } from "./plot.js";
import { Lacks, useMay } from "./may.js";
import { Peek } from "./messages.js";
import { Settings } from "./settings.js";

const most = 100; // messages in flight or deferred that are shown

export function Channel({ topic, channel, session }) {
	const may = useMay(session, topic, channel), sees = may?.view;
	const look = useLook(sees && path("/channels", { topic, channel, clients: "true", dead_letters: "true" }));
	const history = useLook(sees && path("/history", { topic, channel }), 5000);
	const c = look.data?.channels[0], dead = c?.dead_letter_topic;
	const letters = look.data?.dead_letters?.find((l) => l.topic === dead)?.count ?? 0;
	const of = { topic, channel };
	const verb = (name, said, query = {}) => act(() => post(path(`/channel/${name}`, { ...of, ...query })),
		said).then(look.again);
	const line = (name, field) => ({ name, points: pointsOf(history.data?.total, field) });
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
			c.skipped_before && " or earlier"}, until penstock channel unskip.</p>`}
		${c.starved && html`<p class="trouble">For 10 s consumers have asked for nothing: they back off, or hang.</p>`}
		${c.dropping && html`<p class="trouble">Retention or a quota removes messages before they are finished.</p>`}
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
		${may?.view && html`<${Part} title="In flight">${() => html`<${Waiting}
			where=${path("/channel/pending", { ...of, count: most })} deferred=${false} all=${c.in_flight_count} />`}<//>
		<${Part} title="Deferred">${() => html`<${Waiting} where=${path("/channel/deferred", { ...of, count: most })}
			deferred=${true} all=${c.deferred_count} />`}<//>`}
		${may?.admin && html`<${Part} title="Peek at waiting messages">
			${() => html`<${Peek} where="/channel/peek" of=${of} />`}<//>
		<${Part} title="Seek to another place">${() => html`<${Seek} go=${verb} name=${channel} />`}<//>`}
		${may?.view && html`<${Part} title="Settings">${() => html`<${Settings} where=${path("/channel/settings", of)}
			kind="channel" readOnly=${!may.admin} />`}<//>`}
		<${Lacks} may=${may && { ...may, publish: false }} of="channel" />
		${may?.admin && html`<section class="actions" aria-label="Change the channel">
			${c.paused ? html`<button onClick=${() => verb("unpause", `Channel ${channel} goes on.`)}>End the pause</button>`
				: html`<button onClick=${() => verb("pause", `Channel ${channel} is paused.`)}>Pause</button>`}
			<button onClick=${() => verb("redrive",
				(r) => `${plural(r.moved, "dead letter")} went back into ${topic}.`)}>Redrive dead letters</button>
			<${Destroy} label="Empty the channel" name=${channel} onDo=${() => verb("empty", `Channel ${channel} was emptied.`)}
				warning=${`All messages that wait in the channel count as finished:
					${short(c.depth)} now. This cannot be taken back.`} />
			<${Destroy} label="Delete the channel" name=${channel}
				warning=${`The channel goes with its place in the topic, and with ${plural(c.outbox_count ?? 0, "dead letter")}
					not moved yet; its consumers are disconnected. This cannot be taken back.`}
				onDo=${async () => (await act(() => post(path("/channel/delete",
					of)), `Channel ${channel} was deleted.`)) && (location.hash = topicLink(topic))} />
		</section>`}`}`;
}

// consumers says how many consume. The node does not add up those of different leaders: most have a line at each.
const consumers = (c) => Math.max(c.client_count,
	new Set((c.clients ?? []).map((k) => `${k.client_id} ${k.hostname}`)).size);

function Waiting({ where, deferred, all }) {
	const look = useLook(where);
	if (!look.data) return html`<${Trouble} error=${look.error} />`;
	return html`${all > look.data.messages.length && look.data.messages.length >= most && html`<p class="note">${deferred
		? "Those that are due first" : "Those in flight for longest"}: ${most} of ${all.toLocaleString("en")}.</p>`}
		<${Table} label=${deferred ? "Deferred messages" : "Messages in flight"} rows=${look.data.messages}
		keyOf=${(m) => m.id} empty=${deferred ? "No message is deferred." : "No message is in flight."} columns=${[
			{ name: "Message", of: (m) => html`<span class="name whole">${m.id}</span>` },
			...["Partition", "Attempts"].map((name) => ({ name, number: true, of: (m) => m[name.toLowerCase()] })),
			!deferred && { name: "Since", of: (m) => time(m.since) }, { name: deferred ? "Delivered at" : "Times out at",
				of: (m) => time(m.due) }, !deferred && { name: "Client", of: (m) => m.client || "–" },
		].filter(Boolean)} />`;
}

const places = {
	beginning: "the oldest stored message", end: "the next published message", time: "a time", id: "a message",
		count: "messages forward, or back (below 0)",
};

function Seek({ go, name }) {
	const [to, setTo] = useState("time"), [value, setValue] = useState("");
	const needs = to !== "beginning" && to !== "end";
	const sent = () => (needs ? (to === "time" ? new Date(value).toISOString() : value) : undefined);
	const where = { time: `what was published at ${time(value)}, or later`, id: `message ${value}`,
		count: `${Math.abs(value)} messages ${value < 0 ? "back" : "forward"}` }[to] ?? places[to];
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
