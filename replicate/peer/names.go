package peer

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"slices"
	"strings"

	"penstock/netproto"
)

// Names says for which nodes a certificate speaks. A certificate names its subject (CN) and its DNS names.
type Names string

const (
	// NamesOfNodes: a certificate that names nodes of the cluster speaks for these, and one that names none for any. So
	// the certificate of one node is none of another's, and certificates of an authority that does not name nodes go on.
	NamesOfNodes Names = "auto"
	// NamesRequired: a certificate speaks only for the nodes that it names.
	NamesRequired Names = "required"
	// NamesIgnored: every certificate of the authority speaks for every node.
	NamesIgnored Names = "ignored"
)

// speaks returns an error, which both sides get, unless the certificate speaks for the node of that name. known says
// whether a name is that of a node of the cluster.
func (rule Names) speaks(cert *x509.Certificate, name string, known func(name string) bool) error {
	if cert == nil || rule == NamesIgnored {
		return nil
	}
	names := append([]string{cert.Subject.CommonName}, cert.DNSNames...)
	if slices.Contains(names, name) || rule != NamesRequired && !slices.ContainsFunc(names, known) {
		return nil
	}
	r := refuse("the certificate of the node that says it is %q names %s, so it does not speak for that node: give each "+
		"node a certificate of its own, as penstock cluster init-tls makes them, or, where certificates do not name nodes, "+
		"set cluster-tls-names to ignored; nothing was sent", name, strings.Join(names[:min(len(names), 4)], ", "))
	r.Status = netproto.StatusUnproven
	return r
}

// Speaks says whether a certificate names the node.
func Speaks(cert *x509.Certificate, name string) bool {
	return NamesRequired.speaks(cert, name, nil) == nil
}

// certificateOf returns the certificate that the other side of nc has shown in a TLS handshake, or nil.
func certificateOf(nc net.Conn) *x509.Certificate {
	if conn, ok := nc.(*tls.Conn); ok {
		if certs := conn.ConnectionState().PeerCertificates; len(certs) > 0 {
			return certs[0]
		}
	}
	return nil
}

// knows says whether a node of the cluster has this name.
func (n *Net) knows(name string) bool {
	return name == n.o.Self.Name || n.table.Load().names[name] != nil
}
