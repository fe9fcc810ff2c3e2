package auth

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// MaxMaker is the length in bytes of the longest name that Maker returns: topics remember no longer one.
const MaxMaker = 128

// Maker returns the name of the token for which the topics count that the principal makes: see node.TopicOptions. It
// is empty for who administers the node, whose topics count for nobody; so it is for nil, where clients have to prove
// nothing.
func (p *Principal) Maker() string {
	if May(p, Admin, Node()) {
		return ""
	}
	name := strings.ToValidUTF8(p.name, "?")
	if name == "" {
		return "an identity without a name" // an auth server's answer
	}
	if len(name) > MaxMaker { // two long names stay two
		sum := sha256.Sum256([]byte(name))
		mark := "~" + hex.EncodeToString(sum[:8])
		name = strings.ToValidUTF8(name[:MaxMaker-len(mark)], "") + mark
	}
	return name
}
