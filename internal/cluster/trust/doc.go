// Package trust reads what the nodes of a cluster prove to each other, and to the embedded etcd, that they belong
// together: a shared secret, or certificates, or both.
//
// # What comes from a secret
//
// The secret's file has one line, or two while the secret is replaced. From each line HKDF-SHA-256 derives two keys
// that tell nothing of each other: the key of the node port's handshake (package netproto), and the private key of a
// certificate authority (Ed25519), for the embedded etcd, which knows only TLS. So all nodes have the same authorities
// without a file that must be copied, and each node signs a certificate for itself. Everybody who has the secret can do
// the same: that is what the secret means. The certificates do not expire, because they can be made anew at any time,
// and a clock that is wrong must not stop the metadata.
//
// A stranger who connects to etcd's ports is shown a certificate, and can check guesses of the secret against it
// without asking again. Hence MinSecretBytes, and the advice to use random bytes.
//
// # While the secret is replaced
//
// The node port and the first certificate follow the file at every Reload. etcd reads certificates at each connection,
// but the authorities only at its start. So the authority of the first line is also signed by that of the second line,
// and this link is sent along with the certificate: members that know only one of the two accept it. Once every node
// has been restarted with both lines, the older one can go.
package trust
