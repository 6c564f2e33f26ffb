/*
 * Kafka's own client under load, in a virtual machine that stays warm from one job to the next.
 *
 * Run by `bench.peers.kafka_load` as `java -cp 'jars/*' KafkaLoad.java host:port,...`. Jobs come on the standard
 * input, a line each; each is answered with a line on the standard output, "ok ..." or "error ...".
 *
 *   create TOPIC PARTITIONS REPLICAS [NAME=VALUE,...]
 *   delete TOPIC
 *   batches TOPIC RECORDS SIZE BATCH_BYTES LINGER_MS     ok SECONDS P50_MS P99_MS P999_MS
 *   lone TOPIC RECORDS SIZE                              the same, one record at a time
 *
 * Payloads and records are made before the clock starts, and the clock runs from the first send to the last
 * acknowledgement. In batches the latency of every thousandth record is taken.
 */

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

public final class KafkaLoad {
    private static final int PREPARED = 4_000;
    private static final int SAMPLED = 1_000;

    private final String bootstrap;

    private KafkaLoad(String bootstrap) {
        this.bootstrap = bootstrap;
    }

    public static void main(String[] arguments) throws Exception {
        var load = new KafkaLoad(arguments[0]);
        var jobs = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            String answer;
            try {
                answer = "ok " + load.run(line.split(" "));
            } catch (ExecutionException error) {
                answer = "error " + error.getCause();
            } catch (Exception error) {
                answer = "error " + error;
            }
            System.out.println(answer.replace('\n', ' '));
            System.out.flush();
        }
    }

    private String run(String[] job) throws Exception {
        switch (job[0]) {
            case "create":
                return create(job[1], Integer.parseInt(job[2]), Short.parseShort(job[3]), job.length > 4 ? job[4] : "");
            case "delete":
                try (Admin admin = Admin.create(settings())) {
                    admin.deleteTopics(List.of(job[1])).all().get();
                }
                return "";
            case "batches":
                return batches(job[1], Integer.parseInt(job[2]), Integer.parseInt(job[3]), job[4], job[5]);
            case "lone":
                return lone(job[1], Integer.parseInt(job[2]), Integer.parseInt(job[3]));
            default:
                throw new IllegalArgumentException("no job: " + job[0]);
        }
    }

    private Properties settings() {
        var settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private String create(String topic, int partitions, short replicas, String options) throws Exception {
        Map<String, String> configs = new HashMap<>();
        for (String option : options.isEmpty() ? new String[0] : options.split(",")) {
            String[] pair = option.split("=", 2);
            configs.put(pair[0], pair[1]);
        }
        try (Admin admin = Admin.create(settings())) {
            admin.createTopics(List.of(new NewTopic(topic, partitions, replicas).configs(configs))).all().get();
        }
        return "";
    }

    private KafkaProducer<byte[], byte[]> producer(String batchBytes, String lingerMs) {
        Properties settings = settings();
        settings.put("acks", "all");
        settings.put("batch.size", batchBytes);
        settings.put("linger.ms", lingerMs);
        return new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer());
    }

    private static ProducerRecord<byte[], byte[]>[] prepare(String topic, int size) {
        var random = new Random(1);
        @SuppressWarnings("unchecked")
        ProducerRecord<byte[], byte[]>[] records = new ProducerRecord[PREPARED];
        for (int number = 0; number < PREPARED; number++) {
            byte[] value = new byte[size];
            random.nextBytes(value);
            records[number] = new ProducerRecord<>(topic, value);
        }
        return records;
    }

    private String batches(String topic, int count, int size, String batchBytes, String lingerMs) throws Exception {
        ProducerRecord<byte[], byte[]>[] records = prepare(topic, size);
        var acknowledged = new AtomicLong();
        var failure = new AtomicReference<Exception>();
        long[] latencies = new long[(count + SAMPLED - 1) / SAMPLED];
        Callback counting = (found, error) -> {
            if (error == null) {
                acknowledged.incrementAndGet();
            } else {
                failure.compareAndSet(null, error);
            }
        };
        try (var producer = producer(batchBytes, lingerMs)) {
            producer.partitionsFor(topic);
            long began = System.nanoTime();
            for (int number = 0; number < count; number++) {
                Callback callback = counting;
                if (number % SAMPLED == 0) {
                    int place = number / SAMPLED;
                    long sent = System.nanoTime();
                    callback = (found, error) -> {
                        latencies[place] = System.nanoTime() - sent;
                        counting.onCompletion(found, error);
                    };
                }
                producer.send(records[number % PREPARED], callback);
            }
            producer.flush();
            return answer(System.nanoTime() - began, latencies, acknowledged.get(), count, failure.get());
        }
    }

    private String lone(String topic, int count, int size) throws Exception {
        ProducerRecord<byte[], byte[]>[] records = prepare(topic, size);
        long[] latencies = new long[count];
        try (var producer = producer("16384", "0")) {
            producer.partitionsFor(topic);
            long began = System.nanoTime();
            for (int number = 0; number < count; number++) {
                long sent = System.nanoTime();
                producer.send(records[number % PREPARED]).get();
                latencies[number] = System.nanoTime() - sent;
            }
            return answer(System.nanoTime() - began, latencies, count, count, null);
        }
    }

    private static String answer(long nanos, long[] latencies, long acknowledged, int count, Exception failure) {
        if (failure != null || acknowledged != count) {
            throw new IllegalStateException(acknowledged + " of " + count + " were acknowledged: " + failure);
        }
        Arrays.sort(latencies);
        var line = new StringBuilder().append(nanos / 1e9);
        for (double part : new double[] {0.5, 0.99, 0.999}) {
            line.append(' ').append(latencies[(int) Math.min(latencies.length - 1, latencies.length * part)] / 1e6);
        }
        return line.toString();
    }
}
