package main

import (
	"bytes"
	"strings"
	"testing"
)

// engine topic list has a column of the tokens for which topics count if there are any.
func TestTopicListSaysWhoMadeATopic(t *testing.T) {
	made := topicNumbers{Name: "orders", MadeBy: "shop"}
	made.Add(&topicNumbers{Name: "orders", MadeBy: "shop"})
	var none, some bytes.Buffer
	must(t, printTopicNumbers(&none, []topicNumbers{{Name: "orders"}, {Name: "other"}}))
	must(t, printTopicNumbers(&some, []topicNumbers{made, {Name: "other"}}))
	if strings.Contains(none.String(), "MADE BY") {
		t.Errorf("nobody made a topic:\n%s", none.String())
	}
	if !strings.Contains(some.String(), "MADE BY") || !strings.Contains(lineOf(t, some.String(), "orders"), "shop") {
		t.Errorf("shop made orders:\n%s", some.String())
	}
}

// PRODUCERS are those that are connected, at all nodes, and not those that a topic remembers.
func TestConnectedProducersAreListed(t *testing.T) {
	one := topicNumbers{Name: "orders", Producers: 900, Connected: 2}
	one.Add(&topicNumbers{Name: "orders", Producers: 90, Connected: 3})
	var b bytes.Buffer
	must(t, printTopicNumbers(&b, []topicNumbers{one}))
	if got := strings.Fields(lineOf(t, b.String(), "orders")); len(got) != 7 || got[5] != "5" {
		t.Errorf("want 5 producers:\n%s", b.String())
	}
}
