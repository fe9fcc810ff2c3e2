package trust

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"strings"
	"testing"
)

func TestMayEnter(t *testing.T) {
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	client := both[:1]
	for name, test := range map[string]struct {
		rule  Names
		cn    string
		hosts []string
		use   []x509.ExtKeyUsage
		says  string // "": it enters
	}{
		"a node":                            {NamesRequired, "n1", []string{"n1.example"}, both, ""},
		"a node by a DNS name":              {NamesRequired, "x", []string{"y", "n2"}, both, ""},
		"a node, and nothing said of usage": {NamesRequired, "n1", nil, nil, ""},
		"another host": {
			NamesRequired, "web1", []string{"web1.example"}, both, "names web1, web1.example",
		},
		"a part of a name":            {NamesRequired, "n1.example", nil, both, "cluster-tls-nodes"},
		"a client with a node's name": {NamesRequired, "n1", nil, client, "for clients only"},
		"another host, auto":          {NamesOfNodes, "web1", nil, both, ""},
		"a client, auto":              {NamesOfNodes, "app", nil, client, "certificate of app is for clients only"},
		"any usage, auto":             {NamesOfNodes, "app", nil, []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, ""},
		"another host, ignored":       {NamesIgnored, "web1", nil, both, ""},
		"a client, ignored":           {NamesIgnored, "app", nil, client, ""},
	} {
		tr := &Trust{o: Options{Names: test.rule}}
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: test.cn}, DNSNames: test.hosts, ExtKeyUsage: test.use}
		err := tr.MayEnter(cert, func(name string) bool { return name == "n1" || name == "n2" })
		if (err == nil) != (test.says == "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
