#!/bin/sh
# Install the peers that the bench measures Ister against. Nothing here runs by itself: the bench only
# looks for them, and reports as missing what is not there.
#
#   sh bench/peers/install.sh            all of them
#   sh bench/peers/install.sh kafka      one: redis, nats, kafka
#   sh bench/peers/install.sh kafka spark-kafka    and Kafka's own connector for Spark, for bench/spark
set -eu

KAFKA_VERSION="${KAFKA_VERSION:-4.0.0}"
CACHE="${XDG_CACHE_HOME:-$HOME/.cache}/ister-bench/kafka"

install_kafka() {
    command -v mvn >/dev/null || { echo "kafka needs mvn: apt-get install maven" >&2; exit 1; }
    mkdir -p "$CACHE"
    cat >"$CACHE/pom.xml" <<POM
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>ister.bench</groupId>
  <artifactId>kafka</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>$KAFKA_VERSION</version>
    </dependency>
  </dependencies>
</project>
POM
    (cd "$CACHE" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime "-DoutputDirectory=$CACHE")
}

install_spark_kafka() {
    command -v mvn >/dev/null || { echo "spark-kafka needs mvn: apt-get install maven" >&2; exit 1; }
    jars="$(dirname "$CACHE")/spark-kafka"
    mkdir -p "$jars"
    # The newest connector that is there; it works with Spark 4.3.
    for jar in \
        org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 \
        org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0 \
        org.apache.kafka:kafka-clients:3.9.2 \
        org.apache.commons:commons-pool2:2.12.0
    do
        (cd "$jars" && mvn -q -B dependency:copy "-Dartifact=$jar" "-DoutputDirectory=$jars")
    done
}

for peer in "${@:-redis nats kafka}"; do
    for name in $peer; do
        case "$name" in
            redis) apt-get install -y redis-server ;;
            nats) apt-get install -y nats-server ;;
            kafka) install_kafka ;;
            spark-kafka) install_spark_kafka ;;
            *) echo "there is no peer $name: redis, nats, kafka, spark-kafka" >&2; exit 2 ;;
        esac
    done
done
