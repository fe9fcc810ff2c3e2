// finds: the page of a node, the search in a topic's messages, and what an older node does not have.
import { go, heading, named, openParts, row, usable } from "./scenarios.mjs";

// node: any node says of another one who is connected there, and what its settings are.
export async function node(t) {
	const page = await t.open(t.urls[0]);
	await go(page, "#/nodes");
	await page.getByRole("link", { name: "n2", exact: true }).click();
	await heading(page, "n2");
	for (const [name, value] of [["Version", /^\d+\.\d+/], ["Disk free", /^[\d.]+ [GTM]iB$/], ["Up for", /^\d+ (s|min|h)$/]]) {
		await page.locator(".facts > div", { hasText: name }).getByText(value).waitFor();
	}
	// A client of every node consumes billing, and gets messages of all leaders.
	const consumers = page.getByRole("region", { name: "Consumers" });
	await consumers.getByRole("row").filter({ hasText: "orders / billing" }).filter({ hasText: "console-test/1" }).first().waitFor();
	await page.getByText("Those of the partitions that this node leads").waitFor();
	await openParts(page);
	const settings = page.getByRole("region", { name: "Settings" });
	const setting = (name) => settings.getByRole("row").filter({ has: page.getByRole("rowheader", { name, exact: true }) });
	await setting("http_address").or(setting("cluster_address")).first().waitFor();
	t.check((await setting("max_attempts").or(setting("max_topics")).count()) === 0, "settings that nobody has set are shown");
	await page.getByLabel("Show").selectOption("yes");
	await setting("max_topics").getByText("20000").waitFor();
	await setting("max_topics").getByText("default").waitFor();
	await page.getByLabel("Setting contains").fill("max_top");
	await settings.getByRole("row").nth(1).waitFor();
	t.check((await setting("http_address").count()) === 0, "the filter of settings lets others through");
	await named(t, page, "a node");
	await usable(t, page, "a node");
	await t.shot(page, "node-settings");
	await page.getByRole("link", { name: "orders / billing" }).first().click();
	await heading(page, "billing");
	t.expect((text) => text.includes("404"));
	await go(page, "#/nodes/nobody");
	await page.getByText("There is no such node (any more)").or(page.getByText("there is no such node (any more)")).first().waitFor();
}

// search: messages are found by key, header, text and time, with what an older node says instead.
export async function search(t) {
	const page = await t.open(t.urls[1]);
	await go(page, "#/topics/orders");
	await page.getByText("Peek at stored messages").click();
	const form = page.getByRole("form", { name: "Peek at messages" });
	const found = (text) => page.getByText(text).waitFor();
	const fill = async (fields) => {
		for (const name of ["Key", "Header", "Text in the body", "Published since"]) {
			await form.getByLabel(name, { exact: true }).fill(fields[name] ?? "");
		}
		await form.getByRole("button").click();
	};
	// A search ends after a second and says that there is more to look at, which on a busy machine may be the case.
	const all = async (fields) => {
		for (const end = Date.now() + 60000; Date.now() < end;) {
			const [reply] = await Promise.all([page.waitForResponse(/\/topic\/search/), fill(fields)]);
			if ((await reply.json()).next === undefined) return;
		}
		t.check(false, `no search for ${JSON.stringify(fields)} came to its end`);
	};
	await form.getByLabel("Count").fill("100");
	await all({ Key: "customer-3" });
	await found(/^\d messages among 60 that were looked at, as read at/);
	t.check((await page.locator(".messages li").count()) === 9, "not 9 messages have the key");
	await all({ Header: "key^=customer-", "Text in the body": '"order": 1017' });
	await found(/^1 message among 60 that were looked at/);
	await row(page, "billing").first().waitFor();
	await all({ "Published since": "1h ago" });
	await found(/^60 messages among 60/);
	await all({ "Published since": "2099-01-01" });
	await found(/^0 messages among 0/);
	await fill({ "Published since": "monday" });
	await found("“monday” is not a time, such as 2h ago");
	// A few at a time, and on from there.
	await form.getByLabel("Count").fill("40");
	await fill({ Header: "key" });
	await found(/^40 messages among .* There are more to look at\.$/);
	await usable(t, page, "a search");
	await t.shot(page, "search");
	await page.getByRole("button", { name: "Go on" }).click();
	await found(/^20 messages among/);
	// An older node has no search, and no page of a node: that is said, and the rest stays.
	t.expect((text) => text.includes("404"));
	const old = (r) => r.fulfill({ status: 404, contentType: "application/json", body: '{"message":"NOT_FOUND"}' });
	await page.route("**/topic/search*", old);
	await page.route("**/node/*", old);
	await fill({ Key: "customer-3" });
	await found("This node is too old for that");
	await row(page, "billing").first().waitFor();
	await go(page, "#/nodes/n1");
	await page.getByText("Disk free").waitFor();
	await found("This node is too old for that");
	await t.shot(page, "node-old");
}
