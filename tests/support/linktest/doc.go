// Package linktest gives tests a slow link between two hosts on this machine: two network namespaces, and Linux's token
// bucket filter between them. A relay in user space would not do: its sockets' buffers take megabytes at once, and hide
// that the link is slow. Tests of server/nsq and server/native use it. It imports nothing of ours.
package linktest
