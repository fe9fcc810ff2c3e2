package main

import (
	"bytes"
	"strings"
	"testing"
)

// penstock topic list has a column of the tokens for which topics count if there are any.
func TestTopicListSaysWhoMadeATopic(t *testing.T) {
	made := topicNumbers{Name: "orders", MadeBy: "shop"}
	made.add(&topicNumbers{Name: "orders", MadeBy: "shop"})
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
