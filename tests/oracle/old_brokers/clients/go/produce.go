// produce CLIENT SERVER TOPIC CODEC COUNT: records numbered from 0, by franz-go, Sarama or kafka-go.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"
)

const (
	perRequest = 25
	firstMs    = 1600000000000
)

type record struct {
	key, value []byte
	at         time.Time
}

// Times that rise and fall, so that none can be told from its neighbours.
func make1(client, codec string, n int) record {
	ms := int64(firstMs + n*1000 + (n*7919)%5000 - 2500)
	value := fmt.Sprintf("%s %s number %d %s", client, codec, n, strings.Repeat("abcdefgh", n%9))
	return record{[]byte(fmt.Sprintf("key-%d", n%50)), []byte(value), time.UnixMilli(ms)}
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	client, server, topic, codec := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	count, err := strconv.Atoi(os.Args[5])
	must(err)
	var requests [][]record
	for n := 0; n < count; n++ {
		if n%perRequest == 0 {
			requests = append(requests, nil)
		}
		last := len(requests) - 1
		requests[last] = append(requests[last], make1(client, codec, n))
	}
	map[string]func(string, string, string, [][]record){"franz-go": franz, "sarama": withSarama, "kafka-go": segmentio}[client](
		server, topic, codec, requests)
}

func franz(server, topic, codec string, requests [][]record) {
	codecs := map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression()}
	c, err := kgo.NewClient(kgo.SeedBrokers(server), kgo.ProducerBatchCompression(codecs[codec]), kgo.DisableIdempotentWrite(),
		kgo.RequiredAcks(kgo.LeaderAck()), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MaxVersions(kversion.V0_10_0()))
	must(err)
	defer c.Close()
	for _, records := range requests {
		var all []*kgo.Record
		for _, r := range records {
			all = append(all, &kgo.Record{Topic: topic, Key: r.key, Value: r.value, Timestamp: r.at})
		}
		must(c.ProduceSync(context.Background(), all...).FirstErr())
	}
}

func withSarama(server, topic, codec string, requests [][]record) {
	config := sarama.NewConfig()
	config.Version = sarama.V0_10_0_0
	config.Producer.Return.Successes = true
	config.Producer.Flush.Messages = perRequest
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Compression = map[string]sarama.CompressionCodec{"none": sarama.CompressionNone,
		"gzip": sarama.CompressionGZIP, "snappy": sarama.CompressionSnappy, "lz4": sarama.CompressionLZ4}[codec]
	producer, err := sarama.NewSyncProducer([]string{server}, config)
	must(err)
	for _, records := range requests {
		var all []*sarama.ProducerMessage
		for _, r := range records {
			all = append(all, &sarama.ProducerMessage{Topic: topic, Key: sarama.ByteEncoder(r.key),
				Value: sarama.ByteEncoder(r.value), Timestamp: r.at})
		}
		must(producer.SendMessages(all))
	}
	must(producer.Close())
}

func segmentio(server, topic, codec string, requests [][]record) {
	w := &kafka.Writer{Addr: kafka.TCP(server), Topic: topic, BatchSize: perRequest, BatchTimeout: 10 * time.Millisecond,
		RequiredAcks: kafka.RequireOne,
		Compression:  map[string]kafka.Compression{"none": 0, "gzip": kafka.Gzip, "snappy": kafka.Snappy, "lz4": kafka.Lz4}[codec]}
	for _, records := range requests {
		var all []kafka.Message
		for _, r := range records {
			all = append(all, kafka.Message{Key: r.key, Value: r.value, Time: r.at})
		}
		must(w.WriteMessages(context.Background(), all...))
	}
	must(w.Close())
}
