package trust

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
)

// MayEnter returns an error unless a certificate of the cluster's authority may reach the embedded etcd, where nobody
// says which node it is: only the certificate tells. A node is dialed and dials, so a certificate for clients only is
// that of something else. With NamesRequired it must name a node, which is what node says.
func (t *Trust) MayEnter(cert *x509.Certificate, node func(name string) bool) error {
	if t.o.Names == NamesIgnored {
		return nil
	}
	names := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
	shown := strings.Join(names[:min(len(names), 4)], ", ")
	use := cert.ExtKeyUsage
	if len(use) > 0 && !slices.Contains(use, x509.ExtKeyUsageServerAuth) && !slices.Contains(use, x509.ExtKeyUsageAny) {
		return fmt.Errorf("the certificate of %s is for clients only, so it is not that of a node, and does not enter the "+
			"embedded etcd: give each node a certificate for servers and clients, as penstock cluster init-tls makes them, or "+
			"set cluster-tls-names to ignored; nothing was read or changed", shown)
	}
	if t.o.Names != NamesRequired || slices.ContainsFunc(names, node) {
		return nil
	}
	return fmt.Errorf("the certificate names %s, and no node of the cluster, so it does not enter the embedded etcd "+
		"(cluster-tls-names = required): before a node joins that is not in cluster-peers, name it in cluster-tls-nodes of "+
		"the nodes that run etcd; nothing was read or changed", shown)
}
