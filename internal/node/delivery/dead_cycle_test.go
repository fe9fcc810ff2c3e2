package delivery_test

import (
	"slices"
	"testing"

	"penstock/internal/node/delivery"
)

func TestDeadLetterCycle(t *testing.T) {
	for _, c := range []struct {
		name  string
		edges map[string][]string
		dead  string
		want  []string
	}{
		{"to nowhere", nil, "b", nil},
		{"to itself", nil, "a", []string{"a", "a"}},
		{"there and back", map[string][]string{"b": {"a"}}, "b", []string{"a", "b", "a"}},
		{
			"the second channel of the third topic",
			map[string][]string{"b": {"x", "c"}, "c": {"y", "a"}},
			"b",
			[]string{"a", "b", "c", "a"},
		},
		{"two ways to one end", map[string][]string{"b": {"c", "d"}, "c": {"e"}, "d": {"e"}}, "b", nil},
		{"a cycle of others", map[string][]string{"b": {"c"}, "c": {"b"}}, "b", nil},
	} {
		targets := func(topic string) []string { return c.edges[topic] }
		if got := delivery.DeadLetterCycle("a", c.dead, targets); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

func TestDeadHops(t *testing.T) {
	for _, c := range []struct {
		value string
		hops  int
		ok    bool
	}{
		{"", 1, true},
		{"1", 2, true},
		{"7", 8, true},
		{"8", 9, false},
		{"900", 901, false},
		{"x", 2, true},
		{"-5", 2, true},
	} {
		var value []byte
		if c.value != "" {
			value = []byte(c.value)
		}
		if hops, ok := delivery.DeadHops(value); hops != c.hops || ok != c.ok {
			t.Errorf("after %q: %d, %v; want %d, %v", c.value, hops, ok, c.hops, c.ok)
		}
	}
}
