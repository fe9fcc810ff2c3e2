// Native publishes three orders and consumes them, with Penstock's own client.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"penstock/client"
)

var (
	nodes = flag.String("nodes", "127.0.0.1:4250", "native addresses of nodes, separated by commas; they name the others")
	ca    = flag.String("ca", "", "PEM file with the authority of the nodes' certificates; turns TLS on")
	token = flag.String("token-file", "", "file with the token to log in with")
)

func main() {
	flag.Parse()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	options, err := newOptions()
	if err != nil {
		return err
	}
	c, err := client.Dial(ctx, strings.Split(*nodes, ","), options)
	if err != nil {
		return err
	}
	defer c.Close()

	producer, err := c.Producer(ctx, "orders", client.ProducerOptions{})
	if err != nil {
		return err
	}
	for i := range 3 {
		order := fmt.Sprintf("order %d", i+1)
		// It is sent again until a leader answers, and stored once. Produce, with a callback, does not wait.
		if _, err := producer.ProduceSync(ctx, &client.Message{Key: []byte("customer 7"), Body: []byte(order)}); err != nil {
			return err
		}
		fmt.Println("stored:", order)
	}

	consumer, err := c.Consumer(ctx, "orders", "billing", client.ConsumerOptions{})
	if err != nil {
		return err
	}
	for range 3 {
		d, err := consumer.Next(ctx)
		if err != nil {
			return err
		}
		fmt.Printf("consumed: %s\n", d.Body)
		if err := d.Finish(); err != nil {
			log.Print(err) // it came too late: the message is delivered again
		}
	}
	return consumer.Sync(ctx) // waits until what was finished is stored
}

func newOptions() (client.Options, error) {
	var options client.Options
	if *ca != "" {
		pem, err := os.ReadFile(*ca)
		if err != nil {
			return options, err
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			return options, errors.New(*ca + " has no certificate")
		}
		options.TLS = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	}
	if *token != "" {
		secret, err := os.ReadFile(*token)
		if err != nil {
			return options, err
		}
		options.Token = func(context.Context, string) (string, error) { return strings.TrimSpace(string(secret)), nil }
	}
	return options, nil
}
