// The overview: is all well, how much happens, and where.
import { path, useLook } from "./api.js";
import { bytes, channelLink, Facts, html, Marks, Missing, Pager, rate, span, Table, Tag, topicLink, Trouble, short,
	useAddress } from "./ui.js";
import { newest, Plot, pointsOf, useHistory } from "./plot.js";

// Health is one sentence about the node and its cluster. It is green only as long as the node says so now.
export function Health({ cluster, fresh }) {
	const { data, error } = useLook(cluster ? "/cluster/status" : "/health");
	if (!data) return html`<section class="health ${error ? "bad" : ""}"><p>${error
		? error.message : "Asking the node…"}</p></section>`;
	const kind = fresh.stale ? "unknown" : data.healthy ? "good" : "bad";
	const word = { unknown: "Not known now", good: "Healthy", bad: "Not healthy" }[kind];
	return html`<section class="health ${kind}" aria-label="Health">
		<p><strong>${word}</strong> ${fresh.stale ? `${span(fresh.age / 1000)} ago the node said: ${data.health}`
			: data.health.replace(/^(un)?healthy: /, "")}</p>
	</section>`;
}

const ms = (v) => (v === undefined ? "–" : v >= 1000 ? `${short(v / 1000)} s` : `${short(v)} ms`);

export function Overview(props) {
	if (props.session.view) return html`<${Everything} ...${props} />`;
	return html`<h1>Overview</h1>
		${!props.session.cluster && html`<${Health} fresh=${props.fresh} />`}
		<p class="note">Your token may not look at everything: <a href="#/topics">open a topic by its name</a>.</p>`;
}

function Everything({ session, fresh }) {
	const { recent, shown, range } = useHistory({});
	const topics = useLook(path("/topics", { sort: "published", count: 10, dead_letters: true }));
	const waiting = useLook(path("/topics", { sort: "depth", count: 10 }));
	const nodes = shown.data?.nodes ?? [];
	const sums = (field) => pointsOf(shown.data?.total, field);
	const now = (field) => newest(pointsOf(recent.data?.total, field));
	const perNode = (field) => nodes.map((n) => ({ name: n.node, points: pointsOf(n, field) }));
	return html`
		<h1>Overview</h1>
		<${Health} cluster=${session.cluster} fresh=${fresh} />
		<${Missing} of=${recent.data?.missing} />
		<${Trouble} error=${recent.data ? null : recent.error} />
		<${Attention} />
		<${Facts} of=${[
			["Published", rate(now("published"))],
			["Written", now("published_bytes") === undefined ? "–" : `${bytes(now("published_bytes"))}/s`],
			["Delivered", rate(now("delivered"))], ["Finished", rate(now("finished"))],
			["Waiting", short(now("depth"))], ["In flight", short(now("in_flight"))],
			["Publish p99", ms(now("publish_p99_ms"))], ["Disk write p99", ms(now("flush_p99_ms"))],
			topics.data && ["Topics", short(topics.data.count)],
			...(topics.data?.dead_letters ?? []).slice(0, 1).map((most) => ["Dead letters", html`<a
				href=${topicLink(most.topic)}>${short(topics.data.dead_letters.reduce((n, t) => n + t.count, 0))}</a>`]),
		]} />
		<p class="note">These are the numbers of the last full 10 s; the p99 is that of the slowest node.</p>
		${range}
		<div class="plots">
			<${Plot} title="Messages per second" unit=${rate} series=${[{ name: "published",
				points: sums("published") }, { name: "delivered", points: sums("delivered") }, { name: "finished",
				points: sums("finished") }]} />
			<${Plot} title="Messages waiting" series=${[{ name: "waiting", points: sums("depth") }, { name: "in flight",
				points: sums("in_flight") }]} />
			${[["Publish p99", "publish"], ["Disk write p99", "flush"]].map(([title, of]) => html`<${Plot} key=${of}
				title=${title} unit=${ms} series=${perNode(`${of}_p99_ms`)} />`)}
		</div>
		<div class="columns">
			<section><h2>Most published</h2>
				<${Busy} label="Most published" look=${topics}
					columns=${[["Published", (t) => rate(t.published_per_second)], ["Delivered",
					(t) => rate(t.delivered_per_second)]]} worth=${(t) => t.published_per_second > 0}
					empty="Nothing was published in the last 10 s." /></section>
			<section><h2>Most waiting</h2>
				<${Busy} label="Most waiting" look=${waiting}
					columns=${[["Waiting", (t) => short(t.depth)], ["Oldest", (t) => (t.oldest_seconds
					? span(t.oldest_seconds) : "–")]]} worth=${(t) => t.depth > 0} empty="Nothing waits." /></section>
		</div>`;
}

const onPage = 10;

// Attention lists what waits for a person: the worst first, and at its end the dead letters.
function Attention() {
	const [at, setOffset] = useAddress("offset", 0), offset = Number(at) || 0;
	const { data, error } = useLook(path("/attention", { count: 200 }), 5000);
	if (!data) return html`<${Trouble} error=${error} />`;
	const rows = [...data.channels, ...data.dead_letters.map((l) => ({ topic: l.topic, name: "", depth: l.count,
		why: ["dead letters"] }))];
	const link = (c) => (c.name ? channelLink(c.topic, c.name) : topicLink(c.topic));
	return html`<section><h2>Needs attention</h2>
		<${Table} label="Needs attention" rows=${rows.slice(offset, offset + onPage)} keyOf=${(c) => `${c.topic}/${c.name}`}
			empty="No channel is paused, grows, skips, or waits for consumers, and no dead letters wait." columns=${[
			{ name: "Channel", of: (c) => html`<a href=${link(c)}>${c.topic}${c.name && ` / ${c.name}`}</a>` },
			{ name: "Why", of: (c) => c.why.map((w) => html`<${Tag} key=${w} kind="warn">${w}<//> `) },
			{ name: "Waiting", number: true, of: (c) => short(c.depth) },
			{ name: "Oldest", number: true, of: (c) => (c.oldest_seconds ? span(c.oldest_seconds) : "–") },
			{ name: "In 5 min", number: true, of: (c) => (c.grown ? `${c.grown > 0 ? "+" : ""}${short(c.grown)}` : "–") },
			{ name: "Consumers", number: true, of: (c) => (c.name ? short(c.client_count) : "–") },
		]} />
		${rows.length > onPage && html`<${Pager} label="Pages of what needs attention" of=${{ count: rows.length }}
			offset=${offset} count=${onPage} onOffset=${setOffset} />`}</section>`;
}

function Busy({ label, look, columns, worth, empty }) {
	if (!look.data) return html`<${Trouble} error=${look.error} />`;
	return html`<${Table} label=${label} empty=${empty} rows=${look.data.topics.filter(worth)} keyOf=${(t) => t.name}
		columns=${[
		{ name: "Topic", of: (t) => html`<a href=${topicLink(t.name)}>${t.name}</a>` },
		...columns.map(([name, of]) => ({ name, of, number: true })),
	]} />`;
}

export function states(t) {
	const state = t.state === "ok" ? null : t.state?.replaceAll("_", " ");
	const unserved = t.unserved_partitions?.length;
	return html`<${Marks} of=${t} /> ${state && html`<${Tag} kind="bad">${state}<//>`}
		${unserved > 0 && html`<${Tag} kind="bad">${unserved} of ${t.partitions} not served<//>`}`;
}
