package authtest

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"testing"
)

// Hash is how a token file names a secret.
func Hash(secret string) string {
	h := sha256.Sum256([]byte(secret))
	return hex.EncodeToString(h[:])
}

// Token is the part of a token file about one token. Each grant is the lines of a [[token.grant]].
func Token(name, secret string, grants ...string) string {
	text := fmt.Sprintf("[[token]]\nname = %q\nsha256 = %q\n", name, Hash(secret))
	for _, g := range grants {
		text += "[[token.grant]]\n" + g + "\n"
	}
	return text
}

// Write writes a token file that only its owner, and its group, may read.
func Write(t testing.TB, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, 0o640); err != nil { // whatever the umask is
		t.Fatal(err)
	}
}
