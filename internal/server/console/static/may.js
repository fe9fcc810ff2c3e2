// What the client may do. The node decides about every request by itself: this only keeps the pages from offering what
// it would refuse, and from asking for it again and again, which the audit would tell each time.
import { useEffect, useState } from "./vendor/hooks.mjs";
import { doubt, get, links, path } from "./api.js";
import { html } from "./ui.js";

const everything = { publish: true, subscribe: true, view: true, admin: true, creates: true, looks: true };
const period = 2000; // ms until a node that did not answer is asked again

// useMay returns what the client may do with a topic, or with a channel of it: {publish, subscribe, view, admin,
// creates, looks}; creates and looks are about channels of some names. It is undefined until the node has answered, and
// without a topic.
export function useMay(session, topic, channel) {
	const where = session.auth && topic ? path("/session", { topic, channel }) : "";
	const [known, set] = useState({});
	useEffect(() => {
		if (!where) return;
		let timer;
		const stop = new AbortController(), since = performance.now();
		const ask = () => get(where, stop.signal).then((s) => {
			if (stop.signal.aborted) return;
			links.delete(where);
			if (s.auth && !s.name) doubt(); // nobody is logged in any more
			else set({ where, may: { ...s.may, creates: s.creates, looks: s.looks } });
		}, (error) => {
			if (stop.signal.aborted) return;
			links.set(where, { since, error });
			timer = setTimeout(ask, period);
		});
		links.set(where, { since });
		ask();
		return () => {
			stop.abort();
			clearTimeout(timer);
			links.delete(where);
		};
	}, [session, where]); // known stays while a new session is asked for: what was typed must not go
	if (!session.auth) return everything;
	return known.where === where ? known.may : undefined;
}

// Lacks is the one note of a page about what it leaves out.
export function Lacks({ may, of }) {
	if (!may || may.admin) return null;
	if (!may.view) return html`<p class="note">${may.publish
		? `Your token may publish to this ${of}, not look at it.` : of === "channel"
			? "Your token may neither look into this channel nor change it." : `Your token may not look at this ${of}.`}</p>`;
	return html`<p class="note">Your token may look${may.publish && " and publish"}, not change${of
		? " anything or read messages" : ""}.</p>`;
}
