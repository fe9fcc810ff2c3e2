package netproto

import (
	"strings"
	"testing"
)

func TestCheckNodeName(t *testing.T) {
	for name, good := range map[string]bool{
		"n1": true, "n_1": true, "penstock-0.penstock": true, "A": true,
		"": false, "a b": false, "a=b": false, "a,b": false, "a/b": false, `a\b`: false, "ä": false,
		strings.Repeat("n", MaxNodeIDBytes+1): false,
	} {
		if err := CheckNodeName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestCheckHost(t *testing.T) {
	for host, want := range map[string]string{
		"10.0.0.1": "", "::1": "", "2001:db8::1": "", "node_1": "", "broker.example.com": "", "n1": "", "localhost": "",
		"0.0.0.0": "", "::": "", // to listen on
		"":                                  "neither an IP address nor a host name",
		"a b":                               "neither an IP address nor a host name",
		"node:4150":                         "neither an IP address nor a host name",
		"http://node":                       "neither an IP address nor a host name",
		"[::1]":                             "has brackets",
		"fe80::1%eth0":                      `has the zone "eth0"`,
		"10.0.0.300":                        "is no IP address",
		"10.0.1":                            "is no IP address",
		"node.":                             "",
		"..":                                "is no IP address",
		strings.Repeat("a", maxHostBytes+1): "neither an IP address nor a host name",
	} {
		if err := CheckHost(host); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", host, err, want)
		}
	}
	for _, host := range []string{"0.0.0.0", "::", "[::1]", "fe80::1%eth0", ""} {
		if CheckDialled(host) == nil {
			t.Errorf("%q would be told to others", host)
		}
	}
	if err := CheckDialled("node_1"); err != nil {
		t.Error(err)
	}
}
