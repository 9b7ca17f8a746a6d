"""Official keys that this server does not have, with the values that official servers list for them.

Tools read a server's configuration (codes 26 and 319) and expect the official keys in it; `mqadmin exportConfigs`, for
example, prints `totalReplicas`. Where a key could matter, its default describes this server: no automatic failover, and
the default format. `unsupported.py` gives the reason why each key has no effect.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType


def rocketmq_home() -> str:
    """Return the value of `rocketmqHome`: the variable ROCKETMQ_HOME, or the directory of the process."""
    return os.environ.get("ROCKETMQ_HOME") or os.getcwd()


def _parse(text: str) -> Mapping[str, str]:
    pairs = (entry.partition("=") for entry in text.split())
    return MappingProxyType({name: value for name, _, value in pairs})


BROKER = _parse(
    """
    accessMessageInMemoryHotRatio=26 accountStatsEnable=true accountStatsPrintZeroValues=true
    ackMessageThreadPoolNums=16 ackThreadPoolQueueCapacity=100000 aclEnable=false adminBrokerThreadPoolNums=16
    adminBrokerThreadPoolQueueCapacity=10000 appendAckAsync=false appendCkAsync=false
    asyncSendEnable=true autoDeleteUnusedStats=true autoMessageVersionOnTopicLen=true
    batchDispatchRequestThreadPoolNums=16 bitMapLengthConsumeQueueExt=112
    bottomMostCompressionTypeForConsumeQueueStore=zstd
    cgColdReadThreshold=3145728
    channelNotActiveInterval=60000 cleanOfflineBrokerInterval=30000
    cleanRocksDBDirtyCQIntervalMin=60 cleanSwapedMapInterval=300000 clientAsyncSemaphoreValue=65535
    clientCallbackExecutorThreads=2 clientChannelMaxIdleTimeSeconds=120 clientCloseSocketIfTimeout=true
    clientManageThreadPoolNums=32 clientManagerThreadPoolQueueCapacity=1000000 clientOnewaySemaphoreValue=65535
    clientPooledByteBufAllocatorEnable=false clientSocketRcvBufSize=0 clientSocketSndBufSize=0
    clientWorkerThreads=4 coldCtrStrategyEnable=false coldDataFlowControlEnable=false coldDataScanEnable=false
    combineAssignOffsetCQType=default combineCQEnableCheckSelf=false
    combineCQLoadingCQTypes=default;defaultRocksDB combineCQMaxExtraSearchCommitLogFiles=3
    combineCQPreferCQType=default commercialBaseCount=1 commercialSizePerMsg=4096 commitCommitLogLeastPages=4
    commitCommitLogThoroughInterval=200 commitIntervalCommitLog=200 commitLogForceSwapMapInterval=43200000
    commitLogRecoverMaxNum=10 commitLogSwapMapInterval=3600000 commitLogSwapMapReserveFileNum=100
    compactionCqMappedFileSize=10485760 compactionMappedFileSize=104857600 compactionScheduleInternal=900000
    compactionThreadNum=6 compatibleWithOldNameSrv=true configManagerVersion=v1 connectTimeoutMillis=3000
    consumerFallbehindThreshold=17179869184 consumerManageThreadPoolNums=32
    consumerManagerThreadPoolQueueCapacity=1000000 consumerOffsetUpdateVersionStep=500
    correctLogicMinOffsetForceInterval=300000
    correctLogicMinOffsetSleepInterval=1 dataReadAheadEnable=true debugLockEnable=false
    delayOffsetUpdateVersionStep=200 deleteCommitLogFilesInterval=100 deleteConsumeQueueFilesInterval=100
    destroyMapedFileIntervalForcibly=120000 disableCallbackExecutor=false
    disableConsumeIfConsumerReadSlowly=false disableNettyWorkerGroup=false disappearTimeAfterStart=-1
    diskFallRecorded=true dispatchCqCacheNum=4096 dispatchCqThreads=10 dispatchFromSenderThread=false
    duplicationEnable=false enableAcceleratedRecovery=false enableAsyncReput=true
    enableBatchPush=false enableBuildConsumeQueueConcurrently=false enableCalcFilterBitMap=false
    enableCleanExpiredOffset=false enableCompaction=true enableConnectionMetrics=true
    enableConsumeQueueExt=false enableDLegerCommitLog=false enableDetailStat=true
    enableFastChannelEventProcess=false enableLagAndDlqMetrics=true enableLmq=false enableLmqStats=false
    enableLogConsumeQueueRepeatedlyBuildWhenRecover=false enableMessageStoreMetrics=true
    enableMultiDispatch=false enableNetWorkFlowControl=false enableNotifyBeforePopCalculateLag=true
    enablePopBatchAck=false enablePopBufferMerge=false enablePopLog=false enablePopMetrics=true
    enableReconnectForGoAway=true enableRemoteEscape=false enableRemotingMetrics=true enableRequestMetrics=true
    enableRocksDBLog=false enableRunningFlagsInFlush=false enableScheduleAsyncDeliver=false
    enableScheduleMessageStats=true enableShutdownGracefully=false enableSingleTopicRegister=false
    enableSkipLongAwaitingAck=false enableSplitMetadata=true
    enableSplitRegistration=false enableStatsMetrics=true enableTransactionMetrics=true
    enabledAppendPropCRC=false endTransactionPoolQueueCapacity=100000 endTransactionThreadPoolNums=12
    estimateAccumulation=true expectConsumerNumUseFilter=32 fastFailIfNoBufferInStorePool=false
    filterDataCleanTimeSpan=86400000 flushCommitLogLeastPages=4
    flushCommitLogTimed=true flushConsumeQueueLeastPages=2 flushConsumeQueueThoroughInterval=60000
    flushConsumerOffsetHistoryInterval=60000 flushLeastPagesWhenWarmMapedFile=4096 forceVerifyPropCRC=false
    forwardTimeout=3000 globalColdReadThreshold=104857600
     heartbeatThreadPoolNums=2 heartbeatThreadPoolQueueCapacity=50000
    highSpeedMode=false indexFileReadEnable=true indexFileWriteEnable=true
    indexRocksDBEnable=false isBrokerContainer=false isInBrokerContainer=false isScanAvailableNameSrv=true
    isolateLogEnable=false litePullMessageThreadPoolNums=20 litePullThreadPoolQueueCapacity=100000
    loadBalancePollNameServerInterval=30000 loadBalanceProcessorThreadPoolNums=32
    loadBalanceThreadPoolQueueCapacity=100000 lockInStrictMode=false logicQueueForceSwapMapInterval=43200000
    logicQueueSwapMapInterval=3600000 logicQueueSwapMapReserveFileNum=20
    logicalDiskSpaceCleanForciblyThreshold=0.8 mappedFileSizeConsumeQueueExt=50331648 mappedFileSwapEnable=true
    mapperFileSizeBatchConsumeQueue=13800000 maxAsyncPutMessageRequests=5000 maxBatchDeleteFilesNum=50
    maxChecksumRange=1073741824 maxConsumeQueueScan=20000 maxErrorRateOfBloomFilter=20
     maxLmqConsumeQueueNum=20000 maxOffsetMapSize=104857600
    maxReconnectIntervalTimeSeconds=60 maxRecoveryCommitlogFiles=30 maxRocksDBIndexQueryDays=7
    maxSlaveResendLength=268435456 maxStatsIdleTimeInMinutes=-1 memTableFlushIntervalMs=3600000
    messageIndexSafe=false messageStorePlugIn=
    metricsOtelCardinalityLimit=50000
    metricsPromExporterHost= metricsPromExporterPort=5557
     popCkMaxBufferSize=200000 popCkOffsetMaxQueueSize=20000 popCkStayBufferTime=10000
    popCkStayBufferTimeOut=3000 popConsumerFSServiceInit=true popConsumerKVServiceEnable=false
    popConsumerKVServiceInit=false popConsumerKVServiceLog=false popLongPollingForceNotifyInterval=800
    popPollingMapExpireTimeSeconds=600 popPollingMapSize=100000 popReviveConcurrency=32
    popReviveMaxAttemptTimes=16 popReviveMaxReturnSizePerRead=16384 printChannelGroups=false
    printChannelGroupsMinNum=5 processReplyMessageThreadPoolNums=20 pullMessageThreadPoolNums=20
    pullThreadPoolQueueCapacity=100000 putConsumeQueueDataByFileChannel=true putMessageFutureThreadPoolNums=2
    putMsgIndexHightWater=600000 putThreadPoolQueueCapacity=10000 queryMessageThreadPoolNums=10
    queryThreadPoolQueueCapacity=20000 readUnCommitted=false realTimeNotifyConsumerChange=true
    realTimePersistRocksDBConfig=true recheckReputOffsetFromCq=false recoverConcurrently=false
    recoverThreadPoolNums=32 redeleteHangedFileInterval=120000 replicasPerDiskPartition=1
    replyThreadPoolQueueCapacity=10000 reviveAckWaitMs=180000 reviveInterval=1000 reviveMaxSlow=3
    reviveScanTime=10000 rocksdbCQDoubleWriteEnable=false rocksdbCompressionType=lz4
    rocksdbFlushWalFrequency=1024 rocksdbWalFileRollingThreshold=1073741824 sampleCountThreshold=5000
    sampleSteps=32 scheduleAsyncDeliverMaxPendingLimit=2000 scheduleAsyncDeliverMaxResendNum2Blocked=3
    searchBcqByCacheEnable=true sendMessageThreadPoolNums=4
    serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0 serverNettyWorkerGroupEnable=true
    serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3
    serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8 sharedByteBufferNum=16
    skipPreOnline=false socksProxyConfig={}
    spinLockCollisionRetreatOptimalDegree=1000 splitMetadataSize=2000 splitRegistrationSize=800
    statRocksDBCQIntervalSec=10 storeType=default syncBrokerMemberGroupPeriod=1000
    syncMasterFlushOffsetWhenStartup=false
    timerCheckMetricsWhen=05 timerColdDataCheckIntervalMs=60000 timerEnableCheckMetrics=true
    timerEnableDisruptor=false timerEnableRetryUntilSuccess=false timerGetMessageThreadNum=3
    timerInterceptDelayLevel=false timerMetricSmallThreshold=1000000 timerProgressLogIntervalMs=10000
    timerPutMessageThreadNum=3 timerRecallToTimeWheelEnable=true timerRecallToTimelineEnable=true
    timerRocksDBEnable=false timerRocksDBPrecisionMs=1000 timerRocksDBRollIntervalHours=1
    timerRocksDBRollMaxTps=8000.0 timerRocksDBRollRangeHours=2 timerRocksDBStopScan=false
    timerRocksDBTimeExpiredMaxTps=200000.0 timerSkipUnknownError=false timerStopDequeue=false
    timerWarmEnable=false timerWheelSnapshotFlush=false timerWheelSnapshotIntervalMs=10000 topicQueueLockNum=32
    totalReplicas=1 transRocksDBEnable=false transWriteOriginTransHalfEnable=true
    transactionMetricFlushInterval=10000 transferMsgByHeap=true transientStorePoolEnable=false
    transientStorePoolSize=5 travelCqFileNumWhenGetMessage=1 useABSLock=false
    useEpollNativeSelector=false usePIDColdCtrStrategy=true useReentrantLockWhenPutMessage=true
    useSingleRocksDBForAllConfigs=false useStaticSubscription=false useTLS=false wakeCommitWhenPutMessage=true
    wakeFlushWhenPutMessage=false warmMapedFileEnable=false writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
    writeWithoutMmap=false
    """
)
"""Source: BrokerConfig, MessageStoreConfig, NettyServerConfig and NettyClientConfig, 5.4.0."""

NAMESRV = _parse(
    """
    clientRequestThreadPoolNums=8 clientRequestThreadPoolQueueCapacity=50000 clusterTest=false
    defaultThreadPoolNums=16 defaultThreadPoolQueueCapacity=10000
    enableShutdownGracefully=false notifyMinBrokerIdChanged=false productEnvName=center
    serverAsyncSemaphoreValue=64 serverCallbackExecutorThreads=0 serverNettyWorkerGroupEnable=true
    serverOnewaySemaphoreValue=256 serverPooledByteBufAllocatorEnable=true serverSelectorThreads=3
    serverSocketRcvBufSize=0 serverSocketSndBufSize=0 serverWorkerThreads=8 unRegisterBrokerQueueCapacity=3000
    useEpollNativeSelector=false writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
    """
)
"""Source: NamesrvConfig and NettyServerConfig, 5.4.0."""

CONTROLLER = _parse(
    """
    controllerRequestThreadPoolQueueCapacity=50000 controllerThreadPoolNums=16 controllerType=DLedger
    electMasterMaxRetryCount=3 isProcessReadEvent=false mappedFileSize=1073741824
    """
)
"""Source: ControllerConfig, 5.4.0."""
