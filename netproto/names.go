package netproto

import (
	"fmt"
	"net/netip"
	"strings"
)

// maxHostBytes is the longest name that DNS has.
const maxHostBytes = 253

// CheckNodeName returns an error that says why a node cannot have this name, or nil if it can. A name stands in lists
// such as n1=10.0.0.1:4254,n2=10.0.0.2:4254 and in names of files, so it has none of the characters that end it there.
// All settings that name a node are judged by it. ValidNodeID is the weaker rule of the protocol.
func CheckNodeName(name string) error {
	if name == "" || !ValidNodeID(name) || strings.ContainsAny(name, `,=/\`) {
		return fmt.Errorf("%q cannot be the name of a node: use at most %d letters, digits, '-', '_' and '.'", name,
			MaxNodeIDBytes)
	}
	return nil
}

// CheckHost returns an error that says why this text cannot name a host to dial, or nil. It looks only at the text. A
// host is an IP address, or a name of letters, digits, '-', '_' and '.'. It has no port, no brackets and no zone: a
// zone means something else on every machine. All settings that name a host are judged by it.
func CheckHost(host string) error {
	switch ip, err := netip.ParseAddr(host); {
	case err == nil && ip.Zone() != "":
		return fmt.Errorf("%q has the zone %q, which has a meaning on this machine only: use an address without one", host,
			ip.Zone())
	case err == nil:
		return nil
	case strings.HasPrefix(host, "["):
		return fmt.Errorf("%q has brackets: write an IPv6 address without them where no port follows", host)
	case host == "" || len(host) > maxHostBytes || strings.ContainsFunc(host, notOfHost):
		return fmt.Errorf("%q is neither an IP address nor a host name of letters, digits, '-', '_' and '.', without a port",
			host)
	}
	host = strings.TrimSuffix(host, ".")
	if last := host[strings.LastIndexByte(host, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return fmt.Errorf("%q is no IP address, and the last part of a host name is not a number", host)
	}
	return nil
}

// CheckDialled checks a host that this node announces to others. It demands what CheckHost demands, and refuses the
// addresses that stand for all interfaces.
func CheckDialled(host string) error {
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return fmt.Errorf("%q stands for all addresses of a machine, and nobody can dial it: name one of them", host)
	}
	return CheckHost(host)
}

func notOfHost(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
}
